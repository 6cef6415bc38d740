package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// State is what is known of an entry.
type State string

// States of an entry.
const (
	// Good entries are what their header says, as far as they were read: List reads headers only, Verify everything.
	Good State = "good"
	// Bad entries are damaged, or not where their key says.
	Bad State = "bad"
	// Stale entries have another format version: precast passes over them, and Cleanup removes them.
	Stale State = "stale"
)

// Entry describes an entry of the store.
type Entry struct {
	Kind   Kind   `json:"kind"`
	Digest string `json:"digest"`
	// Key is empty when the header can't be read.
	Key  Key    `json:"key"`
	Path string `json:"path"`
	// Bytes is the file's size, Payload that of what it holds.
	Bytes   int64     `json:"bytes"`
	Payload int64     `json:"payload"`
	Created time.Time `json:"created,omitzero"`
	Used    time.Time `json:"used"`
	State   State     `json:"state"`
	// Problem says why an entry is not Good.
	Problem string `json:"problem,omitempty"`
}

// Group counts files.
type Group struct {
	Name  string `json:"name,omitempty"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

func (g *Group) add(bytes int64) {
	g.Files++
	g.Bytes += bytes
}

// Status is a summary of the store.
type Status struct {
	Dir      string `json:"dir"`
	MaxBytes int64  `json:"max_bytes"`
	// Entries are all entries but the weights, Stale and Bad ones too.
	Entries Group `json:"entries"`
	// Weights are the entries of kind Weights, and MaxWeightBytes is their cap.
	Weights        Group `json:"weights"`
	MaxWeightBytes int64 `json:"max_weight_bytes"`
	// Kinds and Plugins split the Good entries by their kind and by their key's field "plugin", in the order of the names.
	Kinds   []Group `json:"kinds"`
	Plugins []Group `json:"plugins"`
	Stale   Group   `json:"stale"`
	Bad     Group   `json:"bad"`
	// Temp are entries that are being written, or were when their writer died.
	Temp Group `json:"temp"`
	// Oldest and Newest are when the entries that were used longest ago and last were used, zero without entries.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Warning says what is wrong with the directory, "" when nothing is.
	Warning string `json:"warning,omitempty"`
}

// check is the error of a cache directory that is there but can't be listed. One that isn't there is an empty cache.
func (s *Store) check() error {
	if s.root == "" {
		return s.off()
	}
	for _, dir := range []string{s.dir, s.root} {
		_, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cache directory %s can't be read: %w", dir, err)
		}
	}
	return nil
}

// Status sums up the store; it reads headers only.
func (s *Store) Status() (*Status, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	st := &Status{Dir: s.dir, MaxBytes: s.max, MaxWeightBytes: s.maxWeights}
	if info, err := os.Stat(s.dir); err == nil {
		st.Warning = writableByOthers(info)
	}
	kinds, plugins := map[string]*Group{}, map[string]*Group{}
	count := func(groups map[string]*Group, name string, bytes int64) {
		if groups[name] == nil {
			groups[name] = &Group{Name: name}
		}
		groups[name].add(bytes)
	}
	for _, f := range s.files() {
		if f.class == tempEntry {
			st.Temp.add(f.size)
		}
		if f.class != entryFile {
			continue
		}
		e, ok := describe(f, false)
		if !ok {
			continue
		}
		if e.Kind == Weights {
			st.Weights.add(e.Bytes)
		} else {
			st.Entries.add(e.Bytes)
		}
		if st.Oldest.IsZero() || e.Used.Before(st.Oldest) {
			st.Oldest = e.Used
		}
		if e.Used.After(st.Newest) {
			st.Newest = e.Used
		}
		switch e.State {
		case Bad:
			st.Bad.add(e.Bytes)
		case Stale:
			st.Stale.add(e.Bytes)
		default:
			count(kinds, string(e.Kind), e.Bytes)
			count(plugins, e.Key.Get("plugin"), e.Bytes)
		}
	}
	sorted := func(groups map[string]*Group) []Group {
		out := []Group{}
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			out = append(out, *groups[name])
		}
		return out
	}
	st.Kinds, st.Plugins = sorted(kinds), sorted(plugins)
	return st, nil
}

// describe reads an entry's header, and the payload too for full. ok is false when the file has vanished.
func describe(f file, full bool) (e Entry, ok bool) {
	e = Entry{Kind: f.kind, Digest: f.digest, Path: f.path, Bytes: f.size, Used: f.used, State: Good}
	h, err := readEntry(f, full)
	if h != nil {
		e.Key, e.Payload, e.Created = h.Key, h.Payload, h.Created
	}
	switch {
	case err == nil:
	case vanished(err):
		return e, false
	case errors.Is(err, errStale):
		e.State, e.Problem = Stale, err.Error()
	default:
		e.State, e.Problem = Bad, err.Error()
	}
	return e, true
}

// readEntry reads an entry's header, which it returns as far as it could be read, and for full checks the payload.
func readEntry(f file, full bool) (*header, error) {
	r, info, err := openEntry(f.path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h, err := readHead(r, info.Size())
	if err != nil {
		return nil, err
	}
	if err := h.liesAt(f); err != nil {
		return h, err
	}
	if full {
		return h, h.checkPayload(r)
	}
	return h, nil
}

// entries describes those entries that pass keep, last used first.
func (s *Store) entries(full bool, keep func(Entry) bool) ([]Entry, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var out []Entry
	for _, f := range s.files() {
		if f.class != entryFile {
			continue
		}
		if e, ok := describe(f, full); ok && keep(e) {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Entry) int {
		return cmp.Or(b.Used.Compare(a.Used), strings.Compare(a.Path, b.Path))
	})
	return out, nil
}

// List describes all entries, last used first; it reads headers only.
func (s *Store) List() ([]Entry, error) {
	return s.entries(false, func(Entry) bool { return true })
}

// Lookup describes the entries whose digest starts with what, or whose key's field "program" is what, last used first.
func (s *Store) Lookup(what string) ([]Entry, error) {
	if what == "" {
		return nil, errors.New("nothing to look up: wanted the start of a digest or the name of a program")
	}
	return s.entries(false, func(e Entry) bool {
		return strings.HasPrefix(e.Digest, strings.ToLower(what)) || e.Key.Get("program") == what
	})
}

// VerifyReport is what Verify found.
type VerifyReport struct {
	// Checked are the entries that were read from end to end.
	Checked Group   `json:"checked"`
	Bad     []Entry `json:"bad"`
	Stale   []Entry `json:"stale"`
	// Removed are the paths of bad entries that were deleted.
	Removed []string `json:"removed,omitempty"`
}

// Verify reads every byte of every entry and reports those that are bad, with the reason. It deletes them only when asked to. Stale entries are
// reported and stay: Cleanup removes them.
func (s *Store) Verify(remove bool) (*VerifyReport, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	r := &VerifyReport{}
	for _, f := range s.files() {
		if f.class != entryFile {
			continue
		}
		info, _ := os.Lstat(f.path)
		e, ok := describe(f, true)
		if !ok {
			continue
		}
		r.Checked.add(e.Bytes)
		switch e.State {
		case Stale:
			r.Stale = append(r.Stale, e)
		case Bad:
			r.Bad = append(r.Bad, e)
			if remove && removeIfSame(f.path, info) {
				r.Removed = append(r.Removed, f.path)
			}
		}
	}
	return r, nil
}

// Removal is a file that was removed, or would be.
type Removal struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
}

// RemovalReport is what Cleanup or Clear did, or would do.
type RemovalReport struct {
	DryRun  bool      `json:"dry_run"`
	Removed []Removal `json:"removed"`
	Bytes   int64     `json:"bytes"` // of what is in Removed
	// Kept are the entries that stay.
	Kept Group `json:"kept"`
	// Failed are files that could not be removed, with the reason.
	Failed []Removal `json:"failed,omitempty"`
}

// CleanupOptions say what else than stale and left-behind files goes.
type CleanupOptions struct {
	// MaxBytes is the cap to bring the entries down to, MaxWeightBytes that of the weights, which don't count against the first; 0 for the store's own.
	MaxBytes, MaxWeightBytes int64
	// OlderThan removes entries that were not used for so long, 0 none.
	OlderThan time.Duration
	// DryRun only reports.
	DryRun bool
}

// Cleanup removes what has no use: entries of another format version, temporary files and lock files older than an hour that no process holds, entries
// not used for o.OlderThan, and then those used longest ago until the cap holds.
func (s *Store) Cleanup(o CleanupOptions) (*RemovalReport, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if o.MaxBytes < 0 || o.MaxWeightBytes < 0 || o.OlderThan < 0 {
		return nil, fmt.Errorf("cache cleanup: the caps are %d and %d bytes and the age %v, wanted none below 0", o.MaxBytes, o.MaxWeightBytes, o.OlderThan)
	}
	limit, limitWeights := cmp.Or(o.MaxBytes, s.max), cmp.Or(o.MaxWeightBytes, s.maxWeights)
	r := &RemovalReport{DryRun: o.DryRun}
	var rest []file
	for _, f := range s.files() {
		switch f.class {
		case tempEntry:
			if leftBehind(f, staleTemp) {
				r.remove(f, "left behind by a process that ended while it wrote")
			}
		case lockFile:
			if time.Since(f.used) >= staleTemp {
				r.removeLock(f)
			}
		case entryFile:
			e, ok := describe(f, false)
			switch unused := time.Since(f.used); {
			case !ok:
			case e.State == Stale:
				r.remove(f, e.Problem)
			case o.OlderThan > 0 && unused >= o.OlderThan:
				r.remove(f, fmt.Sprintf("not used for %v", unused.Round(time.Second)))
			default:
				rest = append(rest, f)
			}
		}
	}
	over := overCaps(rest, limit, limitWeights, "")
	gone := map[string]bool{}
	for _, f := range over {
		most := limit
		if f.kind == Weights {
			most = limitWeights
		}
		r.remove(f, fmt.Sprintf("the cap is %d bytes and this was used longest ago", most))
		gone[f.path] = true
	}
	for _, f := range rest {
		if !gone[f.path] {
			r.Kept.add(f.size)
		}
	}
	return r, nil
}

// Clear removes everything that the store has put into its directory and that no process is using: entries, temporary files, lock files, and folders
// that are empty then. Files that are not the store's stay, and so do the folders that they are in.
func (s *Store) Clear(dryRun bool) (*RemovalReport, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	r := &RemovalReport{DryRun: dryRun}
	dirs := map[string]bool{}
	for _, f := range s.files() {
		switch f.class {
		case entryFile:
			r.remove(f, "entry")
		case tempEntry:
			if leftBehind(f, 0) {
				r.remove(f, "left behind by a process that ended while it wrote")
			}
		case lockFile:
			r.removeLock(f)
			continue // the folder of the locks stays: a process may be about to take one
		}
		dirs[filepath.Dir(f.path)] = true
		dirs[filepath.Dir(filepath.Dir(f.path))] = true
	}
	if !dryRun {
		// A folder comes after those in it. Removing one that isn't empty fails, which is what is wanted.
		for _, dir := range slices.Backward(slices.Sorted(maps.Keys(dirs))) {
			_ = os.Remove(dir)
		}
	}
	return r, nil
}

func (r *RemovalReport) remove(f file, reason string) {
	if !r.DryRun {
		if err := os.Remove(f.path); err != nil {
			if !vanished(err) {
				r.Failed = append(r.Failed, Removal{f.path, f.size, err.Error()})
			}
			return
		}
	}
	r.Removed = append(r.Removed, Removal{f.path, f.size, reason})
	r.Bytes += f.size
}

// removeLock removes a lock file that nobody holds. It is removed while it is locked: who opened it before finds that out (see acquire).
func (r *RemovalReport) removeLock(f file) {
	if unlock := tryExisting(f.path); unlock != nil {
		r.remove(f, "lock that no process holds")
		unlock()
	}
}
