package pipelines

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"precast/graph"
)

const (
	float32Type = dtypes.Float32
	int32Type   = dtypes.Int32
)

func shape(dtype graph.DType, dims ...int) graph.Shape { return shapes.Make(dtype, dims...) }
