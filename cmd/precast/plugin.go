package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"precast"
)

var pluginCommand = command{
	name: "plugin", args: "list|install cpu|tpu|cuda13|cpu:PACKAGE",
	short: "list and install PJRT plugins, the libraries that hold XLA for a device",
	long: `
  list              every plugin that precast knows for this machine: whether it is installed and what it says
                    about itself
  install NAME      fetch a plugin with pip from the index that pip is configured for, check it against its
                    pinned SHA-256 and unpack it; cpu, tpu and cuda13 are each target's default, cpu:PACKAGE is
                    one of the others. One that is there and good needs no network

A plugin of your own is used by its path: --plugin PATH, or PRECAST_PLUGIN in the environment.`,
	setup: setupPlugin,
}

func setupPlugin(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	wheel := fs.String("wheel", "", "install: `FILE` of the wheel, fetched by other means, for a machine without network")
	force := fs.Bool("force", false, "install: install again what is there")
	asJSON := fs.Bool("json", false, "list: print JSON")
	client := fs.Bool("client", false, "describe: make a client")
	_ = fs.MarkHidden("client")
	return func(ctx context.Context, args []string) error {
		verb, rest, err := verbOf("plugin", []string{"list", "install", "describe"}, args)
		if err != nil {
			return err
		}
		for flag, only := range map[string]string{"wheel": "install", "force": "install", "json": "list"} {
			if fs.Changed(flag) && !contains(only, verb) {
				return userError("%s: it is for precast plugin %s, not %s", flag, only, verb)
			}
		}
		switch verb {
		case "list":
			if len(rest) > 0 {
				return userError("plugin list: argument %q is one too many", rest[0])
			}
			return c.listPlugins(ctx, *asJSON)
		case "install":
			if len(rest) != 1 {
				return userError("plugin install: wanted one name: cpu, tpu, cuda13 or cpu:PACKAGE (precast plugin list)")
			}
			return c.installPlugin(ctx, rest[0], precast.PluginInstallOptions{Wheel: *wheel, Force: *force})
		}
		// describe is what list runs in a process of its own, since a plugin can end the process that loads it.
		if len(rest) != 1 {
			return userError("plugin describe: wanted the path of a plugin")
		}
		info, err := precast.DescribePlugin(rest[0], *client)
		if err != nil {
			return err
		}
		return json.NewEncoder(c.out).Encode(info)
	}
}

// describeApart asks a plugin what it is in a process of its own.
func describeApart(ctx context.Context, path string, client bool) *precast.PluginInfo {
	self, err := os.Executable()
	if err != nil {
		return &precast.PluginInfo{Problem: err.Error()}
	}
	return precast.DescribePluginApart(ctx, path, self, "plugin", "describe", fmt.Sprintf("--client=%v", client))
}

// pluginRow is one plugin of the list.
type pluginRow struct {
	Name      string              `json:"name"`
	Target    string              `json:"target"`
	Package   string              `json:"package"`
	Version   string              `json:"version"`
	Default   bool                `json:"default"`
	Installed bool                `json:"installed"`
	Verified  bool                `json:"verified"`
	Problem   string              `json:"problem,omitempty"`
	Path      string              `json:"path,omitempty"`
	SHA256    string              `json:"sha256,omitempty"`
	Licence   string              `json:"licence"`
	Notice    string              `json:"notice,omitempty"`
	Bytes     int64               `json:"download_bytes"`
	About     *precast.PluginInfo `json:"about,omitempty"`
}

func (c *cli) listPlugins(ctx context.Context, asJSON bool) error {
	store, err := precast.Plugins()
	if err != nil {
		return userError("%w", err)
	}
	rows := []pluginRow{}
	for _, s := range store.List() {
		r := pluginRow{
			Name: s.Pin.Name(), Target: s.Pin.Target, Package: s.Pin.Package, Version: s.Pin.Version, Default: s.Default, Licence: s.Pin.Licence,
			Notice: s.Pin.Notice, Bytes: s.Pin.Wheels[precast.PluginPlatform()].Size,
		}
		switch {
		case s.Installed != nil:
			r.Installed, r.Verified, r.Path, r.SHA256 = true, true, s.Installed.Path, s.Installed.SHA256
			// A client of an accelerator might wait for a device, or take it from a process that runs.
			r.About = describeApart(ctx, r.Path, s.Pin.Target == "cpu")
			if err := ctx.Err(); err != nil {
				return err
			}
		case s.Err != nil && !precast.IsNotInstalled(s.Err):
			r.Installed, r.Problem = true, s.Err.Error()
		}
		rows = append(rows, r)
	}
	if asJSON {
		enc := json.NewEncoder(c.out)
		enc.SetIndent("", "  ")
		return enc.Encode(rows)
	}
	fmt.Fprintf(c.out, "plugins are installed in %s\n\n", store.Dir)
	t := table(c.out)
	fmt.Fprintln(t, "plugin\tversion\tstate\tAPI\tplatform\tlicence")
	for _, r := range rows {
		state, api, platform := "not installed ("+megabytes(r.Bytes)+" to fetch)", "-", "-"
		switch {
		case r.Problem != "":
			state = "damaged"
		case r.Installed && r.About.Problem != "":
			state = "installed, does not load"
		case r.Installed:
			state, api, platform = "installed, verified", r.About.API, orDash(r.About.Platform)
		}
		name := r.Name
		if r.Default {
			name += " (" + r.Target + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, r.Version, state, api, platform, r.Licence)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if !r.Installed {
			continue
		}
		fmt.Fprintf(c.out, "\n%s\n", r.Name)
		list := []string{"  path", r.Path, "  sha256", r.SHA256, "  problem", r.Problem}
		if r.About != nil {
			list = append(list, "  problem", r.About.Problem, "  platform version", r.About.PlatformVersion)
			for _, key := range slices.Sorted(maps.Keys(r.About.Attributes)) {
				list = append(list, "  "+key, fmt.Sprint(r.About.Attributes[key]))
			}
		}
		if err := pairs(c.out, append(list, "  notice", r.Notice)...); err != nil {
			return err
		}
	}
	return nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }

func (c *cli) installPlugin(ctx context.Context, name string, o precast.PluginInstallOptions) error {
	store, err := precast.Plugins()
	if err != nil {
		return userError("%w", err)
	}
	if !c.quiet {
		o.Out = prefixed{c}
	}
	have, err := store.Install(ctx, name, o)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return userError("%w", err)
	}
	_, err = fmt.Fprintln(c.out, have.Path)
	return err
}

// prefixed makes log lines of what is written, which is whole lines.
type prefixed struct{ c *cli }

func (p prefixed) Write(b []byte) (int, error) {
	log := p.c.logger()
	for line := range strings.Lines(string(b)) {
		log.Info(strings.TrimSuffix(line, "\n"))
	}
	return len(b), nil
}
