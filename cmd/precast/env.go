package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/pflag"

	"precast"
)

var envCommand = command{
	name: "env", args: "",
	short: "show versions, the machine, and what programs would run on here",
	long: `
Shows what decides how precast runs here: versions, the machine, the backend and plugin that --backend auto takes, the cache, and the environment
variables that change something. Add its output to a report of a fault.`,
	setup: setupEnv,
}

func setupEnv(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	asJSON := fs.Bool("json", false, "print JSON")
	dir := fs.String("cache-dir", "", "`DIR` of the cache (default: $PRECAST_CACHE_DIR, else precast in the user's cache folder)")
	return func(ctx context.Context, args []string) error {
		if err := wantArgs(args); err != nil {
			return err
		}
		e := precast.Environment(*dir, func(path string, cpu bool) *precast.PluginInfo { return describeApart(ctx, path, cpu) })
		if *asJSON {
			enc := json.NewEncoder(c.out)
			enc.SetIndent("", "  ")
			return enc.Encode(e)
		}
		list := []string{
			"precast", e.Version, "go", e.Go, "platform", e.Platform, "cpu", e.CPU, "cpu features", e.Features,
			"threads", fmt.Sprintf("%d of %d CPUs", e.Threads, e.CPUs),
		}
		if e.MemoryTotal > 0 {
			list = append(list, "memory", fmt.Sprintf("%s, %s available", precast.FormatBytes(e.MemoryTotal), precast.FormatBytes(e.MemoryAvailable)))
		}
		backend := "go (pure Go, slow)"
		if e.Plugin != nil {
			backend = "pjrt"
		}
		list = append(list, "backend", backend)
		if p := e.Plugin; p != nil {
			list = append(list, "plugin", p.Name, "  path", p.Path, "  sha256", p.SHA256, "  problem", p.Problem, "  PJRT API", p.API,
				"  platform", p.Platform, "  platform version", p.PlatformVersion)
		}
		list = append(list, "no plugin", e.Problem, "plugin folder", e.PluginDir)
		if s := e.Cache; s != nil {
			list = append(list, "cache", s.Dir, "  entries", fmt.Sprintf("%d, %s of at most %s", s.Entries.Files, precast.FormatBytes(s.Entries.Bytes), precast.FormatBytes(s.MaxBytes)),
				"  weights", fmt.Sprintf("%d, %s of at most %s", s.Weights.Files, precast.FormatBytes(s.Weights.Bytes), precast.FormatBytes(s.MaxWeightBytes)),
				"  warning", s.Warning)
		}
		list = append(list, "cache problem", e.CacheError)
		for _, v := range e.Variables {
			list = append(list, v.Name, quoted(v.Value))
		}
		return pairs(c.out, list...)
	}
}
