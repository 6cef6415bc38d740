// Package precast; a temporary file that holds the dependencies.
package precast

import (
	_ "github.com/ebitengine/purego"
	_ "github.com/gofrs/flock"
	_ "github.com/gomlx/compute/gobackend"
	_ "github.com/gomlx/compute/support/backendtest"
	_ "github.com/gomlx/go-xla/stablehlo"
	_ "github.com/gomlx/go-xla/types/shardy"
	_ "github.com/gomlx/gomlx/core/graph"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/schollz/progressbar/v3"
	_ "github.com/spf13/pflag"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/text/unicode/norm"
	_ "golang.org/x/tools/txtar"
	_ "google.golang.org/protobuf/encoding/protowire"
)
