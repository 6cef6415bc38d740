package precast

import (
	"slices"
	"strings"
	"testing"

	"precast/backends"
	"precast/backends/gobackend"
	"precast/cache"
	"precast/graph"
	"precast/passes"
)

// TestXLAFlagsInKeys: flags of XLA that change what is compiled are part of what identifies a backend, those that ask for dumps are not
// (https://github.com/jax-ml/jax/issues/8090).
func TestXLAFlagsInKeys(t *testing.T) {
	identity := func(flags string) []cache.Field {
		t.Setenv("XLA_FLAGS", flags)
		client, err := gobackend.Plugin().NewClient(backends.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		return newBackend(client, "go", "").identity
	}
	none, dump := identity(""), identity("--xla_dump_to=/tmp/x  --xla_dump_hlo_as_text")
	fast, both := identity("--xla_cpu_enable_fast_math=true"), identity("--xla_cpu_enable_fast_math=true --xla_dump_to=/tmp/x")
	if !slices.Equal(none, dump) || !slices.Equal(fast, both) {
		t.Errorf("flags for dumps change the identity: %v, %v", dump, both)
	}
	if diff := (cache.Key{Fields: none}).Diff(cache.Key{Fields: fast}); len(diff) != 1 || diff[0].Name != "xla_flags" {
		t.Errorf("a flag that changes programs differs in %v, wanted xla_flags", diff)
	}
}

// TestLightParts: of a plan, what runs once and moves little beside the rest is light; a block is not, nor is a part that runs once and does much, nor a
// program that is the whole plan.
func TestLightParts(t *testing.T) {
	const text = `module @m

func @main {
  %x = input "x" : f32[64,64]
  %w0 = weight "b.0.w" : f32[64,64]
  %w1 = weight "b.1.w" : f32[64,64]
  %w2 = weight "b.2.w" : f32[64,64]
  %v = input "v" : f32[4]
  %a = %FIRST : f32[%SIZE]
  %y0 = call %x, %w0 {callee = "block"} : f32[64,64]
  %y1 = call %y0, %w1 {callee = "block"} : f32[64,64]
  %y2 = call %y1, %w2 {callee = "block"} : f32[64,64]
  %z = tanh %y2 : f32[64,64]
  return %z, %a
}

func @block class "b" {
  %0 = input "arg0" : f32[64,64]
  %1 = weight "w" : f32[64,64]
  %2 = dot_general %0, %1 {lhs_contracting = [1], rhs_contracting = [1]} : f32[64,64]
  %3 = tanh %2 : f32[64,64]
  %4 = multiply %3, %2 : f32[64,64]
  %5 = add %0, %4 : f32[64,64]
  return %5
}
`
	plan := func(first, size string) *passes.Plan {
		m, err := graph.Parse("m", strings.NewReplacer("%FIRST", first, "%SIZE", size).Replace(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := graph.Verify(m); err != nil {
			t.Fatal(err)
		}
		p, err := passes.Split(m)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// The parts are what is before the blocks, the block, and the tanh behind them, which is a quarter of all that evaluates tanh.
	if got := lightParts(plan("add %v, %v", "4")); !slices.Equal(got, []bool{true, false, false}) {
		t.Errorf("a small part before the blocks: found %v, wanted it light alone", got)
	}
	if got := lightParts(plan("add %x, %x", "64,64")); !slices.Equal(got, []bool{false, false, false}) {
		t.Errorf("a part that moves as much as the blocks' operations: found %v, wanted none light", got)
	}
	if got := lightParts(plan("exponential %v", "4")); !slices.Equal(got, []bool{true, false, false}) {
		t.Errorf("a part with few exponentials: found %v, wanted it light", got)
	}
	// Parts that are small one by one are light up to their sum.
	many := plan("add %v, %v", "4")
	small := many.Programs[0]
	for range 400 {
		many.Programs = append(many.Programs, small)
		many.Steps = append(many.Steps, passes.Step{Program: len(many.Programs) - 1})
	}
	got := lightParts(many)
	n := 0
	for _, l := range got {
		if l {
			n++
		}
	}
	if n == 0 || n == 401 {
		t.Errorf("401 small parts: %d are light, wanted some and not all", n)
	}
	m, err := graph.Parse("m", "module @m\n\nfunc @main {\n  %x = input \"x\" : f32[4]\n  %y = add %x, %x : f32[4]\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := lightParts(passes.Whole(m)); !slices.Equal(got, []bool{false}) {
		t.Errorf("a plan of one program: found %v, wanted it not light", got)
	}
}
