package precast

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"precast/graph"
	"precast/graph/pipelines"
	"precast/lower"
)

// dumper writes the phases of one program: DIR/<program>/00.trace.graph, one file a pass, NN.stablehlo.mlir and NN.optimized.hlo.txt. A second
// set of sizes of the same program gets a folder with its sizes in the name.
type dumper struct {
	dir  string // empty: nothing is written
	next int
}

func (e *engine) dumper(p *pipelines.Program) (*dumper, error) {
	d := &dumper{}
	if e.cfg.DumpDir == "" {
		return d, nil
	}
	d.next = 1 + len(e.pipeline(p, nil).Passes())
	d.dir = filepath.Join(e.cfg.DumpDir, p.Name)
	if have, err := os.ReadFile(filepath.Join(d.dir, "program.txt")); err == nil && strings.TrimSpace(string(have)) != p.ID() {
		d.dir = filepath.Join(e.cfg.DumpDir, p.Name+"-"+fileName(p.Spec))
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, userErrorf("dump folder: %w", err)
	}
	return d, d.write("program.txt", []byte(p.ID()+"\n"))
}

func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '=', r == '_':
			return r
		}
		return '_'
	}, s)
}

func (d *dumper) write(name string, data []byte) error {
	if d.dir == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(d.dir, name), data, 0o644); err != nil {
		return userErrorf("dump: %w", err)
	}
	return nil
}

func (d *dumper) graph(i int, phase string, m *graph.Module) error {
	if d.dir == "" {
		return nil
	}
	return d.write(fmt.Sprintf("%02d.%s.graph", i, phase), []byte(m.String()))
}

// stablehlo writes the programs' text, with the module paths as locations.
func (d *dumper) stablehlo(main, prep *lowered) error {
	if d.dir == "" {
		return nil
	}
	for _, part := range []struct {
		low  *lowered
		name string
	}{{main, "stablehlo"}, {prep, "prepare.stablehlo"}} {
		if part.low == nil {
			continue
		}
		for i, prog := range part.low.programs {
			name := fmt.Sprintf("%02d.%s.mlir", d.next, part.name)
			if len(part.low.programs) > 1 {
				name = fmt.Sprintf("%02d.%s.%02d-%s.mlir", d.next, part.name, i, fileName(prog.Name))
			}
			text, err := lower.Text(prog.Module, lower.Options{Locations: true})
			if err != nil {
				return err
			}
			if err := d.write(name, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// optimized writes what the compiler made of the programs, where it tells.
func (d *dumper) optimized(made *program) error {
	if d.dir == "" {
		return nil
	}
	for i, exe := range made.exes {
		text, err := exe.OptimizedHLO()
		if err != nil {
			text = "the backend gives no optimized program: " + err.Error() + "\n"
		}
		name := fmt.Sprintf("%02d.optimized.hlo.txt", d.next+1)
		if len(made.exes) > 1 {
			name = fmt.Sprintf("%02d.optimized.%02d-%s.hlo.txt", d.next+1, i, fileName(made.manifest.Main.Executables[i].Name))
		}
		if err := d.write(name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// dumpForBug writes a module where a fault of ours can be looked at, and returns the file's name, "" when that failed too.
func dumpForBug(m *graph.Module) string {
	f, err := os.CreateTemp("", "precast-bug-*.graph")
	if err != nil {
		return ""
	}
	defer f.Close()
	if err := graph.Print(f, m); err != nil {
		return ""
	}
	return f.Name()
}
