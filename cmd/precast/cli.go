package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"precast"
)

// cli is one invocation.
type cli struct {
	in       io.Reader
	out, err io.Writer
	quiet    bool
	verbose  bool
	json     bool // log lines as JSON
}

// command is one verb.
type command struct {
	name  string
	args  string
	short string
	long  string
	// setup declares the flags and returns what runs with the remaining arguments.
	setup func(c *cli, fs *pflag.FlagSet) func(ctx context.Context, args []string) error
}

func commands() []command {
	return []command{runCommand, compileCommand, benchCommand, inspectCommand, modelsCommand, cacheCommand, pluginCommand, envCommand}
}

func (c *cli) main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks for an orderly end; a second one has its usual effect.
	context.AfterFunc(ctx, stop)
	return c.finish(ctx, guarded(func() error { return c.dispatch(ctx, args) }))
}

// finish says what went wrong and returns the exit code.
func (c *cli) finish(ctx context.Context, err error) int {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(c.err, "precast: interrupted; no output was written")
		return 1
	}
	c.complain(err)
	return precast.ExitCode(err)
}

// guarded makes a panic an error, so that a fault of ours is told from the user's input by the exit code.
func guarded(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("BUG: panic: %s\n%s", strings.TrimPrefix(fmt.Sprint(p), "BUG: "), debug.Stack())
		}
	}()
	return run()
}

// complain prints an error, one problem a line.
func (c *cli) complain(err error) {
	if c.json {
		c.logger().Error(err.Error())
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(c.err, "precast: error: "+strings.TrimSuffix(line, "\n"))
	}
}

func (c *cli) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" && len(args) == 1 || args[0] == "-h" || args[0] == "--help" {
		c.usage(c.out)
		return nil
	}
	if args[0] == "--version" || args[0] == "version" {
		fmt.Fprintln(c.out, "precast "+precast.Version)
		return nil
	}
	if args[0] == "help" {
		args = []string{args[1], "--help"}
	}
	list := commands()
	i := slices.IndexFunc(list, func(k command) bool { return k.name == args[0] })
	if i < 0 {
		var names []string
		for _, k := range list {
			names = append(names, k.name)
		}
		if near := nearest(args[0], names); near != "" {
			return userError("command %q is not known; did you mean %s? (precast help lists the commands)", args[0], near)
		}
		return userError("command %q is not known; the commands are %s (precast help)", args[0], strings.Join(names, ", "))
	}
	k := list[i]
	fs := pflag.NewFlagSet(k.name, pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	run := k.setup(c, fs)
	fs.BoolVarP(&c.quiet, "quiet", "q", false, "print results and errors only")
	fs.BoolVarP(&c.verbose, "verbose", "v", false, "say more: each pass, a table of counts and times")
	format := fs.String("log-format", "text", "`FORM` of notes, warnings, progress and errors on standard error: text or json")
	err := fs.Parse(args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		c.help(k, fs)
		return nil
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		fs.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := nearest(strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-"), names); near != "" {
			return userError("%w; did you mean --%s? (precast help %s lists the flags)", err, near, k.name)
		}
	}
	if err != nil {
		return userError("%w (precast help %s lists the flags)", err, k.name)
	}
	switch *format {
	case "text":
	case "json":
		c.json = true
	default:
		return userError("log-format: found %q, wanted text or json", *format)
	}
	return run(ctx, fs.Args())
}

func userError(format string, args ...any) error {
	return &precast.UserError{Err: fmt.Errorf(format, args...)}
}

func (c *cli) usage(w io.Writer) {
	fmt.Fprint(w, `precast compiles diffusion pipelines ahead of time and runs them.

  precast run MODEL_DIR --prompt "a red circle on a blue background" -o circle.png
  precast compile MODEL_DIR -o model.precast --shape 1024x1024
  precast run model.precast --prompt "another" -o another.png

Commands:
`)
	for _, k := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", k.name, k.short)
	}
	fmt.Fprint(w, `
precast help COMMAND lists a command's flags; in their names - and _ are the same.

Environment:
  PRECAST_CACHE_DIR   where compiled programs are kept (default: precast in the user's cache folder)
  PRECAST_PLUGIN_DIR  where PJRT plugins are installed (default: precast/plugins in the user's data folder)
  PRECAST_PLUGIN      the plugin to run on: a path, a name of precast plugin list, or go for none
  HF_HOME, HF_TOKEN   where models from the hub are kept, and the token for those that need one; HF_HUB_CACHE,
                      HF_ENDPOINT and HF_HUB_OFFLINE, too, mean what they mean to Python's huggingface_hub
  XLA_FLAGS           flags for XLA; they are part of every cache key, except those that ask for dumps

Exit codes: 0 done; 1 something is wrong with the input; 2 a fault of precast; 3 --cache-only was given and something would have to be compiled.
`)
}

func (c *cli) help(k command, fs *pflag.FlagSet) {
	fmt.Fprintf(c.out, "%s\n\n%s\n\nFlags:\n%s", strings.TrimSpace("precast "+k.name+" "+k.args), reflow(k.long), flagHelp(fs))
}

// wantArgs checks the number of arguments; names are what they are.
func wantArgs(args []string, names ...string) error {
	if len(args) == len(names) {
		return nil
	}
	if len(args) > len(names) {
		return userError("argument %q is one too many; wanted %s", args[len(names)], orNothing(names))
	}
	return userError("%s is missing", names[len(args)])
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "no argument"
	}
	return strings.Join(names, " ")
}
