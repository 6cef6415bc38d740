package pjrt

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"precast/backends"
)

// defaultOverrides are the debug options by platform that make a plugin keep to StableHLO; CompileOptions.Overrides goes before them.
var defaultOverrides = map[string]map[string]any{
	// XLA's own default on the CPU lets minimum and maximum lose a NaN.
	"cpu": {"xla_cpu_enable_fast_min_max": false},
}

// encodeCompileOptions writes a CompileOptionsProto (xla/pjrt/proto/compile_options.proto). The field numbers are in the comments. It is
// deterministic, and never empty: XLA ends the process on empty options. platform is the kind of device that is compiled for.
func encodeCompileOptions(platform string, opts backends.CompileOptions) ([]byte, error) {
	partitions := max(opts.NumPartitions, 1)
	if opts.NumPartitions < 0 {
		return nil, fmt.Errorf("partitions: found %d, wanted 1 or more", opts.NumPartitions)
	}
	if len(opts.DeviceIDs) > 0 && len(opts.DeviceIDs) != partitions {
		return nil, fmt.Errorf("device ids: found %d for %d partitions, wanted one for each", len(opts.DeviceIDs), partitions)
	}
	varint := func(b []byte, field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
	}
	message := func(b []byte, field protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
	}

	var build []byte                         // ExecutableBuildOptionsProto
	build = varint(build, 1, math.MaxUint64) // device_ordinal -1: any
	build = varint(build, 4, 1)              // num_replicas
	build = varint(build, 5, uint64(partitions))
	if partitions > 1 {
		build = varint(build, 6, 1) // use_spmd_partitioning
	}
	if len(opts.DeviceIDs) > 0 {
		assignment := varint(nil, 1, 1) // DeviceAssignmentProto: replica_count
		assignment = varint(assignment, 2, uint64(partitions))
		for _, id := range opts.DeviceIDs {
			if id < 0 {
				return nil, fmt.Errorf("device ids: found %d, wanted 0 or more", id)
			}
			assignment = message(assignment, 3, message(nil, 1, protowire.AppendVarint(nil, uint64(id)))) // computation_devices
		}
		build = message(build, 9, assignment) // device_assignment
	}
	if opts.Shardy {
		build = varint(build, 19, 1) // use_shardy_partitioner
	}
	out := message(nil, 3, build) // executable_build_options
	overrides := maps.Clone(defaultOverrides[platform])
	if overrides == nil {
		overrides = map[string]any{}
	}
	maps.Copy(overrides, opts.Overrides)
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		var value []byte // OptionOverrideProto
		switch v := overrides[name].(type) {
		case string:
			value = message(nil, 1, []byte(v))
		case bool:
			value = varint(nil, 2, protowire.EncodeBool(v))
		case int:
			value = varint(nil, 3, uint64(v))
		case int64:
			value = varint(nil, 3, uint64(v))
		case float64:
			value = protowire.AppendFixed64(protowire.AppendTag(nil, 4, protowire.Fixed64Type), math.Float64bits(v))
		default:
			return nil, fmt.Errorf("override %s: found a %T, wanted string, bool, int, int64 or float64", name, v)
		}
		entry := message(nil, 1, []byte(name))
		entry = message(entry, 2, value)
		out = message(out, 7, entry) // env_option_overrides
	}
	return out, nil
}
