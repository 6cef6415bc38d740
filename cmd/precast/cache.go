package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"precast"
)

var cacheCommand = command{
	name: "cache", args: "status|lookup [DIGEST|PROGRAM]|verify|cleanup|clear",
	short: "show, check and empty the cache of compiled programs and weights",
	long: `
  status                     where the cache is, how much is in it, for which plugins
  lookup [DIGEST|PROGRAM]    entries, last used first: all, those whose digest starts so, or those of a program
                             such as unet; --verbose shows each field of their keys
  verify                     read every byte and report what is damaged; with --delete, remove it
  cleanup                    remove entries in another version's format, files left behind, and what is over
                             the cap, used longest ago first
  clear                      remove everything

An entry that is damaged costs a compile and no more: it is found, removed and made anew when it is next wanted. Weights, which --weights-cache on
writes, have a cap of their own. Of their entries a run checks header and length, and verify every byte.`,
	setup: setupCache,
}

func setupCache(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	dir := fs.String("cache-dir", "", "`DIR` of the cache (default: $PRECAST_CACHE_DIR, else precast in the user's cache folder)")
	dry := fs.Bool("dry-run", false, "cleanup, clear: say what would be removed, remove nothing")
	remove := fs.Bool("delete", false, "verify: remove the entries that are damaged")
	older := fs.Duration("older-than", 0, "cleanup: remove entries that were not used for so long, too, such as 720h")
	capBytes := fs.Int64("max-bytes", 0, "cleanup: bring the cache down to this many bytes")
	capWeights := fs.Int64("max-weight-bytes", 0, "cleanup: bring the weights in the cache down to this many bytes")
	asJSON := fs.Bool("json", false, "print JSON")
	return func(_ context.Context, args []string) error {
		verbs := []string{"status", "lookup", "verify", "cleanup", "clear"}
		verb, rest, err := verbOf("cache", verbs, args)
		if err != nil {
			return err
		}
		if verb == "lookup" && len(rest) > 1 || verb != "lookup" && len(rest) > 0 {
			return userError("cache %s: argument %q is one too many", verb, rest[len(rest)-1])
		}
		for flag, only := range map[string]string{"dry-run": "cleanup clear", "delete": "verify", "older-than": "cleanup", "max-bytes": "cleanup", "max-weight-bytes": "cleanup"} {
			if fs.Changed(flag) && !contains(only, verb) {
				return userError("%s: it is for precast cache %s, not %s", flag, only, verb)
			}
		}
		if *older < 0 || *capBytes < 0 || *capWeights < 0 {
			return userError("older-than, max-bytes and max-weight-bytes: found %v, %d and %d, wanted 0 or more", *older, *capBytes, *capWeights)
		}
		log := c.logger()
		store := precast.OpenCache(*dir, func(format string, args ...any) { log.Warn(fmt.Sprintf(format, args...)) })
		show := func(v any, err error, print func(w io.Writer) error) error {
			if err != nil {
				return userError("%w", err)
			}
			if *asJSON {
				enc := json.NewEncoder(c.out)
				enc.SetIndent("", "  ")
				return enc.Encode(v)
			}
			return print(c.out)
		}
		switch verb {
		case "status":
			s, err := store.Status()
			return show(s, err, func(w io.Writer) error { return printCacheStatus(w, s) })
		case "lookup":
			if len(rest) == 0 {
				list, err := store.List()
				return show(notNil(list), err, func(w io.Writer) error { return printEntries(w, list, c.verbose) })
			}
			list, err := store.Lookup(rest[0])
			if err == nil && len(list) == 0 {
				return userError("cache lookup: no entry's digest starts with %q, and no program has that name; precast cache lookup lists all", rest[0])
			}
			return show(notNil(list), err, func(w io.Writer) error { return printEntries(w, list, c.verbose || len(list) == 1) })
		case "verify":
			r, err := store.Verify(*remove)
			if err := show(r, err, func(w io.Writer) error { return printVerify(w, r) }); err != nil {
				return err
			}
			if n := len(r.Bad) - len(r.Removed); n > 0 {
				return userError("cache verify: %d of %d entries are damaged; --delete removes them", n, r.Checked.Files)
			}
			return nil
		case "cleanup":
			r, err := store.Cleanup(precast.CacheCleanupOptions{MaxBytes: *capBytes, MaxWeightBytes: *capWeights, OlderThan: *older, DryRun: *dry})
			return show(r, err, func(w io.Writer) error { return printRemoval(w, r) })
		}
		r, err := store.Clear(*dry)
		return show(r, err, func(w io.Writer) error { return printRemoval(w, r) })
	}
}

// notNil makes an empty list print as one in JSON.
func notNil(list []precast.CacheEntry) []precast.CacheEntry {
	if list == nil {
		return []precast.CacheEntry{}
	}
	return list
}

func printCacheStatus(w io.Writer, s *precast.CacheStatus) error {
	t := table(w)
	fmt.Fprintf(t, "folder\t%s\n", s.Dir)
	fmt.Fprintf(t, "entries\t%d, %s of at most %s\n", s.Entries.Files, precast.FormatBytes(s.Entries.Bytes), precast.FormatBytes(s.MaxBytes))
	if s.Weights.Files > 0 {
		fmt.Fprintf(t, "weights\t%d, %s of at most %s\n", s.Weights.Files, precast.FormatBytes(s.Weights.Bytes), precast.FormatBytes(s.MaxWeightBytes))
	}
	for _, g := range s.Kinds {
		if g.Name == precast.CacheWeights {
			continue
		}
		fmt.Fprintf(t, "  %s\t%d, %s\n", g.Name, g.Files, precast.FormatBytes(g.Bytes))
	}
	for _, g := range s.Plugins {
		fmt.Fprintf(t, "  for %s\t%d, %s\n", g.Name, g.Files, precast.FormatBytes(g.Bytes))
	}
	for _, g := range []struct {
		name, what string
		g          precast.CacheGroup
	}{
		{"stale", "of another version of precast; precast cache cleanup removes them", s.Stale},
		{"damaged", "precast cache verify says what is wrong", s.Bad},
		{"temporary", "being written, or left behind", s.Temp},
	} {
		if g.g.Files > 0 {
			fmt.Fprintf(t, "%s\t%d, %s (%s)\n", g.name, g.g.Files, precast.FormatBytes(g.g.Bytes), g.what)
		}
	}
	if !s.Newest.IsZero() {
		fmt.Fprintf(t, "last used\t%s\n", stamp(s.Newest))
		fmt.Fprintf(t, "longest unused\t%s\n", stamp(s.Oldest))
	}
	if s.Warning != "" {
		fmt.Fprintf(t, "warning\t%s\n", s.Warning)
	}
	return t.Flush()
}

func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func printEntries(w io.Writer, list []precast.CacheEntry, fields bool) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "the cache is empty")
		return err
	}
	if fields {
		for i, e := range list {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := printEntry(w, &e); err != nil {
				return err
			}
		}
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "digest\tkind\tprogram\tsizes\tplugin\tbytes\tused\tstate")
	for _, e := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Digest[:12], e.Kind, orDash(e.Key.Get("program")), orDash(e.Key.Get("spec")),
			orDash(e.Key.Get("plugin")), precast.FormatBytes(e.Bytes), stamp(e.Used), e.State)
	}
	return t.Flush()
}

// printEntry prints an entry with each field of its key.
func printEntry(w io.Writer, e *precast.CacheEntry) error {
	t := table(w)
	fmt.Fprintf(t, "cache entry\t%s\n", e.Digest)
	if e.Kind != "" {
		fmt.Fprintf(t, "kind\t%s\n", e.Kind)
	}
	fmt.Fprintf(t, "file\t%s\nbytes\t%d\nstate\t%s\n", e.Path, e.Bytes, e.State)
	if e.Problem != "" {
		fmt.Fprintf(t, "problem\t%s\n", e.Problem)
	}
	if !e.Created.IsZero() {
		fmt.Fprintf(t, "made\t%s\n", stamp(e.Created))
	}
	fmt.Fprintf(t, "used\t%s\n", stamp(e.Used))
	if len(e.Key.Fields) > 0 {
		fmt.Fprintln(t, "key\t")
	}
	for _, f := range e.Key.Fields {
		fmt.Fprintf(t, "  %s\t%s\n", f.Name, orDash(f.Value))
	}
	return t.Flush()
}

func printVerify(w io.Writer, r *precast.CacheVerifyReport) error {
	fmt.Fprintf(w, "%d entries, %s, read; %d damaged, %d of another version\n", r.Checked.Files, precast.FormatBytes(r.Checked.Bytes), len(r.Bad), len(r.Stale))
	for _, e := range r.Bad {
		fmt.Fprintf(w, "damaged: %s: %s\n", e.Path, e.Problem)
	}
	for _, path := range r.Removed {
		fmt.Fprintf(w, "removed: %s\n", path)
	}
	return nil
}

func printRemoval(w io.Writer, r *precast.CacheRemovalReport) error {
	did := "removed"
	if r.DryRun {
		did = "would remove"
	}
	for _, x := range r.Removed {
		fmt.Fprintf(w, "%s %s (%s)\n", did, x.Path, x.Reason)
	}
	fmt.Fprintf(w, "%s %d files, %s; %d entries stay, %s\n", did, len(r.Removed), precast.FormatBytes(r.Bytes), r.Kept.Files, precast.FormatBytes(r.Kept.Bytes))
	for _, x := range r.Failed {
		fmt.Fprintf(w, "failed: %s: %s\n", x.Path, x.Reason)
	}
	if len(r.Failed) > 0 {
		return userError("cache: %d files could not be removed", len(r.Failed))
	}
	return nil
}
