package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"precast"
)

var modelsCommand = command{
	name: "models", args: "[CLASS|MODEL]",
	short: "list the supported pipelines, their components and what is verified",
	long: `
Lists the pipeline classes of diffusers that are supported: what they make, the published models whose configs are known (--model-config), their
networks with the repeated blocks that are found in them, and the runs that were compared with diffusers. With a class or a model it says more.`,
	setup: setupModels,
}

func setupModels(c *cli, fs *pflag.FlagSet) func(context.Context, []string) error {
	asJSON := fs.Bool("json", false, "print JSON")
	return func(ctx context.Context, args []string) error {
		if len(args) > 1 {
			return userError("%q is one argument too many; name one class or model", args[1])
		}
		name := ""
		if len(args) == 1 {
			name = args[0]
		}
		list, err := precast.Models(ctx, name)
		if err != nil {
			return err
		}
		if *asJSON {
			enc := json.NewEncoder(c.out)
			enc.SetIndent("", "  ")
			return enc.Encode(list)
		}
		for i, m := range list {
			if i > 0 {
				fmt.Fprintln(c.out)
			}
			if err := c.showModel(&m, name != ""); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *cli) showModel(m *precast.ModelInfo, more bool) error {
	fmt.Fprintf(c.out, "%s: %s\n", m.Class, strings.Join(m.Makes, ", "))
	fmt.Fprintf(c.out, "  published models  %s\n", strings.Join(m.Configs, ", "))
	fmt.Fprintf(c.out, "  dtypes            %s\n", strings.Join(m.DTypes, ", "))
	fmt.Fprintf(c.out, "  verified          %s\n", verifiedText(m))
	t := table(c.out)
	fmt.Fprintf(t, "  of %s\tclass\tparameters\trepeated blocks\n", m.Example)
	for _, k := range m.Components {
		blocks := repeatedBlocks(k.Repeated)
		if !more && len(blocks) > 3 {
			blocks = append(blocks[:3], "...")
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", k.Name, k.Class, parameterCount(k.Parameters), strings.Join(blocks, ", "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !more {
		return nil
	}
	for _, k := range m.Components {
		if len(k.Float32) > 0 {
			for i, line := range wrap(strings.Join(k.Float32, ", "), helpWidth-4) {
				if i == 0 {
					fmt.Fprintf(c.out, "  float32 where the rest of %s is bfloat16:\n", k.Name)
				}
				fmt.Fprintf(c.out, "    %s\n", line)
			}
		}
	}
	if len(m.Verified) > 0 {
		fmt.Fprintln(c.out, "  largest relative difference from diffusers over the runs:")
		t := table(c.out)
		fmt.Fprintln(t, "    case\tbackend\truns\ttext\tmodel output\tlatents\tdecoded\tpicture (of 255)")
		for _, v := range m.Verified {
			fmt.Fprintf(t, "    %s\t%s\t%d\t%.1e\t%.1e\t%.1e\t%.1e\t%d\n", v.Case, v.Backend, len(v.Runs), v.Text.Rel, v.Model.Rel, v.Latents.Rel, v.Decoded.Rel, v.Picture)
		}
		return t.Flush()
	}
	return nil
}

// repeatedBlocks writes classes of blocks that repeat with their instances: "attentions x 5 + 5" where blocks of one place have two shapes.
func repeatedBlocks(list []precast.Block) []string {
	var names []string
	text := map[string]string{}
	for _, b := range list {
		if b.Instances < 2 {
			continue
		}
		if _, ok := text[b.Class]; !ok {
			names = append(names, b.Class)
			text[b.Class] = fmt.Sprintf("%s x %d", b.Class, b.Instances)
			continue
		}
		text[b.Class] += fmt.Sprintf(" + %d", b.Instances)
	}
	for i, n := range names {
		names[i] = text[n]
	}
	return names
}

// verifiedText sums up which runs were compared with diffusers.
func verifiedText(m *precast.ModelInfo) string {
	runs, cases, backends := 0, []string{}, []string{}
	for _, v := range m.Verified {
		if !slices.Contains(cases, v.Case) {
			cases = append(cases, v.Case)
			runs += len(v.Runs)
		}
		if !slices.Contains(backends, v.Backend) {
			backends = append(backends, v.Backend)
		}
	}
	if runs == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d runs of diffusers (%s) on %s", runs, strings.Join(cases, ", "), strings.Join(backends, " and "))
}

// parameterCount writes a number of parameters for people: "11.90 B".
func parameterCount(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f B", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}
