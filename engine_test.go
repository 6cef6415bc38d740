package precast

import (
	"slices"
	"testing"

	"precast/backends"
	"precast/backends/gobackend"
	"precast/cache"
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
