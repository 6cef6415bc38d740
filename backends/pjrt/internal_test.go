package pjrt

import (
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"precast/backends"
	"precast/backends/plugin"
)

// TestTable compares the positions of the functions with pjrt_c_api.h, which the package xla-cpu-pjrt carries.
func TestTable(t *testing.T) {
	store, err := plugin.Open()
	if err != nil {
		t.Skip(err)
	}
	found, err := store.Lookup("cpu:xla-cpu-pjrt")
	if err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(found.Path), "pjrt_c_api.h"))
	if err != nil {
		t.Skip(err)
	}
	position := map[string]fn{}
	for i, m := range regexp.MustCompile(`(?m)^\s*_PJRT_API_STRUCT_FIELD\((PJRT_\w+)\);`).FindAllSubmatch(text, -1) {
		position[string(m[1])] = fn(i)
	}
	for name, f := range map[string]fn{
		"PJRT_Error_Destroy": fnErrorDestroy, "PJRT_Error_Message": fnErrorMessage, "PJRT_Error_GetCode": fnErrorGetCode,
		"PJRT_Plugin_Initialize": fnPluginInitialize, "PJRT_Plugin_Attributes": fnPluginAttributes,
		"PJRT_Event_Destroy": fnEventDestroy, "PJRT_Event_IsReady": fnEventIsReady, "PJRT_Event_Error": fnEventError, "PJRT_Event_OnReady": fnEventOnReady,
		"PJRT_Client_Create": fnClientCreate, "PJRT_Client_Destroy": fnClientDestroy, "PJRT_Client_PlatformName": fnClientPlatformName,
		"PJRT_Client_PlatformVersion": fnClientPlatformVersion, "PJRT_Client_AddressableDevices": fnClientAddressableDevices,
		"PJRT_Client_Compile": fnClientCompile, "PJRT_Client_BufferFromHostBuffer": fnClientBufferFromHost, "PJRT_Client_TopologyDescription": fnClientTopology,
		"PJRT_DeviceDescription_Id": fnDeviceDescriptionID, "PJRT_DeviceDescription_Attributes": fnDeviceDescriptionAttrs,
		"PJRT_DeviceDescription_Kind": fnDeviceDescriptionKind, "PJRT_Device_GetDescription": fnDeviceGetDescription, "PJRT_Device_MemoryStats": fnDeviceMemoryStats,
		"PJRT_Executable_Destroy": fnExecutableDestroy, "PJRT_Executable_NumOutputs": fnExecutableNumOutputs,
		"PJRT_Executable_GetCostAnalysis": fnExecutableCostAnalysis, "PJRT_Executable_OptimizedProgram": fnExecutableOptimizedProgram,
		"PJRT_Executable_Serialize": fnExecutableSerialize, "PJRT_LoadedExecutable_Destroy": fnLoadedDestroy,
		"PJRT_LoadedExecutable_GetExecutable": fnLoadedGetExecutable, "PJRT_LoadedExecutable_AddressableDevices": fnLoadedAddressableDevices,
		"PJRT_LoadedExecutable_Execute": fnLoadedExecute, "PJRT_Executable_DeserializeAndLoad": fnDeserializeAndLoad,
		"PJRT_Buffer_Destroy": fnBufferDestroy, "PJRT_Buffer_ElementType": fnBufferElementType, "PJRT_Buffer_Dimensions": fnBufferDimensions,
		"PJRT_Buffer_IsDeleted": fnBufferIsDeleted, "PJRT_Buffer_ToHostBuffer": fnBufferToHost, "PJRT_Buffer_ReadyEvent": fnBufferReadyEvent,
		"PJRT_Buffer_UnsafePointer":       fnBufferUnsafePointer,
		"PJRT_TopologyDescription_Create": fnTopologyCreate, "PJRT_TopologyDescription_Destroy": fnTopologyDestroy,
		"PJRT_TopologyDescription_PlatformName": fnTopologyPlatformName, "PJRT_TopologyDescription_PlatformVersion": fnTopologyPlatformVersion,
		"PJRT_TopologyDescription_GetDeviceDescriptions": fnTopologyDeviceDescriptions, "PJRT_TopologyDescription_Serialize": fnTopologySerialize,
		"PJRT_TopologyDescription_Attributes": fnTopologyAttributes, "PJRT_Compile": fnCompile,
		"PJRT_Executable_OutputElementTypes": fnExecutableOutputTypes, "PJRT_Executable_OutputDimensions": fnExecutableOutputDims,
		"PJRT_Executable_Fingerprint": fnExecutableFingerprint, "PJRT_Executable_GetCompiledMemoryStats": fnExecutableMemoryStats,
	} {
		if want, ok := position[name]; !ok || f != want {
			t.Errorf("%s: found %d, wanted %d (in the header: %v)", name, f, want, ok)
		}
	}
}

// TestStructSizes holds the sizes of the structs against those of the C compiler, printed by one for the header of API version 0.104 on a
// 64-bit machine.
func TestStructSizes(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"PJRT_Api_Version":                   {unsafe.Sizeof(apiVersion{}), 24},
		"PJRT_NamedValue":                    {unsafe.Sizeof(namedValue{}), 56},
		"PJRT_Program":                       {unsafe.Sizeof(program{}), 48},
		"PJRT_Client_Create_Args":            {unsafe.Sizeof(clientCreateArgs{}), 88},
		"PJRT_Client_Compile_Args":           {unsafe.Sizeof(clientCompileArgs{}), 56},
		"PJRT_Compile_Args":                  {unsafe.Sizeof(compileArgs{}), 64},
		"PJRT_Executable_Deserialize...Args": {unsafe.Sizeof(deserializeArgs{}), 64},
		"PJRT_ExecuteOptions":                {unsafe.Sizeof(executeOptions{}), 120},
		"PJRT_LoadedExecutable_Execute_Args": {unsafe.Sizeof(executeArgs{}), 80},
		"PJRT_Client_BufferFromHost...Args":  {unsafe.Sizeof(bufferFromHostArgs{}), 120},
		"PJRT_Buffer_MemoryLayout":           {unsafe.Sizeof(memoryLayout{}), 80},
		"PJRT_Buffer_ToHostBuffer_Args":      {unsafe.Sizeof(toHostArgs{}), 56},
		"PJRT_Device_MemoryStats_Args":       {unsafe.Sizeof(deviceMemoryArgs{}), 192},
		"PJRT_Executable_...MemoryStats":     {unsafe.Sizeof(executableMemoryArgs{}), 144},
		"PJRT_TopologyDescription_Create":    {unsafe.Sizeof(topologyCreateArgs{}), 56},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("%s: found %d bytes, wanted %d", name, sizes[0], sizes[1])
		}
	}
}

// TestOffsets holds the fields that the plugin writes, and those behind padding, against the C compiler's offsets.
func TestOffsets(t *testing.T) {
	for name, offsets := range map[string][2]uintptr{
		"PJRT_DeviceDescription_Attributes_Args.attributes":   {unsafe.Offsetof(countThenDataArgs{}.data), 32},
		"PJRT_Client_Devices_Args.devices":                    {unsafe.Offsetof(handleBytesArgs{}.data), 24},
		"PJRT_Plugin_Attributes_Args.attributes":              {unsafe.Offsetof(outBytesArgs{}.data), 16},
		"PJRT_Executable_OutputDimensions_Args.dim_sizes":     {unsafe.Offsetof(outputDimensionsArgs{}.dimSizes), 40},
		"PJRT_Executable_Serialize_Args....deleter":           {unsafe.Offsetof(serializeArgs{}.deleter), 48},
		"PJRT_Event_OnReady_Args.user_arg":                    {unsafe.Offsetof(onReadyArgs{}.userArg), 32},
		"PJRT_Client_Create_Args.client":                      {unsafe.Offsetof(clientCreateArgs{}.client), 64},
		"PJRT_NamedValue.string_value":                        {unsafe.Offsetof(namedValue{}.value), 40},
		"PJRT_Device_MemoryStats_Args.bytes_limit":            {unsafe.Offsetof(deviceMemoryArgs{}.limit), 80},
		"PJRT_ExecuteOptions.non_donatable_input_indices":     {unsafe.Offsetof(executeOptions{}.nonDonatable), 56},
		"PJRT_LoadedExecutable_Execute_Args.output_lists":     {unsafe.Offsetof(executeArgs{}.outputs), 56},
		"PJRT_Client_BufferFromHostBuffer_Args.host_buffer_s": {unsafe.Offsetof(bufferFromHostArgs{}.semantics), 72},
		"PJRT_Client_BufferFromHostBuffer_Args.buffer":        {unsafe.Offsetof(bufferFromHostArgs{}.buffer), 112},
		"PJRT_Executable_DeserializeAndLoad_Args.loaded_ex":   {unsafe.Offsetof(deserializeArgs{}.executable), 40},
		"PJRT_Compile_Args.executable":                        {unsafe.Offsetof(compileArgs{}.executable), 56},
		"PJRT_Client_Compile_Args.executable":                 {unsafe.Offsetof(clientCompileArgs{}.executable), 48},
		"PJRT_TopologyDescription_Create_Args.topology":       {unsafe.Offsetof(topologyCreateArgs{}.topology), 48},
		"PJRT_Executable_GetCompiledMemoryStats_Args.temp":    {unsafe.Offsetof(executableMemoryArgs{}.temporaries), 56},
		"PJRT_Buffer_MemoryLayout.type":                       {unsafe.Offsetof(memoryLayout{}.kind), 72},
	} {
		if offsets[0] != offsets[1] {
			t.Errorf("%s: found offset %d, wanted %d", name, offsets[0], offsets[1])
		}
	}
}

func TestCheckAPI(t *testing.T) {
	const full = tableStart + (uintptr(lastRequired)+1)*8
	table := func(size uintptr, major, minor int32) unsafe.Pointer {
		b := make([]uint64, 256)
		h := (*apiHeader)(unsafe.Pointer(&b[0]))
		h.structSize, h.version = size, apiVersion{major: major, minor: minor}
		return unsafe.Pointer(h)
	}
	for _, test := range []struct {
		name  string
		table unsafe.Pointer
		text  string
	}{
		{"good", table(full, 0, minMinor), ""},
		{"later", table(full+80, 0, 999), ""},
		{"null", nil, "no function table"},
		{"no version in it", table(16, 0, 100), "the function table has 16 bytes"},
		{"another major", table(full, 1, 100), "found PJRT API version 1.100, wanted 0.40 or a later 0.x"},
		{"too old", table(full, 0, minMinor-1), "found PJRT API version 0.39"},
		{"cut short", table(full-8, 0, 100), "wanted at least"},
	} {
		_, _, _, err := checkAPI(test.table)
		if test.text == "" && err != nil || test.text != "" && (err == nil || !strings.Contains(err.Error(), test.text)) {
			t.Errorf("%s: found %v, wanted %q", test.name, err, test.text)
		}
	}
	a, _, _, err := checkAPI(table(full, 0, 100))
	if err != nil {
		t.Fatal(err)
	}
	// Beyond the table, and null inside it.
	for _, f := range []fn{fnExecutableMemoryStats, fnCompile} {
		if err := a.call(f, nil, "test"); backends.CodeOf(err) != backends.Unimplemented {
			t.Errorf("call of function %d: found %v, wanted UNIMPLEMENTED", f, err)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":                               "found no path",
		filepath.Join(dir, "missing.so"): "no such file",
		dir:                              "found a folder",
		text:                             "can't be loaded",
	} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q): found %v, wanted %q", path, err, want)
		}
	}
	if libm := "/lib/x86_64-linux-gnu/libm.so.6"; runtime.GOARCH == "amd64" {
		if _, err := os.Stat(libm); err == nil {
			if _, err := Load(libm); err == nil || !strings.Contains(err.Error(), "no PJRT plugin") {
				t.Errorf("Load(libm): found %v, wanted an error that it is no plugin", err)
			}
		}
	}
}

func TestCompileOptions(t *testing.T) {
	for _, test := range []struct {
		name     string
		platform string
		opts     backends.CompileOptions
		want     string
	}{
		// Decoded with protoc: executable_build_options { device_ordinal: -1 num_replicas: 1 num_partitions: 1 }.
		{"one device", "tpu", backends.CompileOptions{}, "1a 0f 08ffffffffffffffffff01 2001 2801"},
		// ... num_partitions: 4 use_spmd_partitioning: true use_shardy_partitioner: true.
		{"four partitions", "tpu", backends.CompileOptions{NumPartitions: 4, Shardy: true}, "1a 14 08ffffffffffffffffff01 2001 2804 3001 980101"},
		// ... device_assignment { replica_count: 1 computation_count: 2 computation_devices { replica_device_ids: 2 } ... 3 }.
		{"devices", "tpu", backends.CompileOptions{NumPartitions: 2, DeviceIDs: []int{2, 3}}, "1a 21 08ffffffffffffffffff01 2001 2802 3001 4a0e 0801 1002 1a03 0a0102 1a03 0a0103"},
		// env_option_overrides { key: "a" value { bool_field: true } } ...
		{
			"overrides", "tpu",
			backends.CompileOptions{Overrides: map[string]any{"d": 0.5, "a": true, "b": int64(7), "c": "x"}},
			"1a 0f 08ffffffffffffffffff01 2001 2801 3a07 0a0161 12021001 3a07 0a0162 12021807 3a08 0a0163 12030a0178 3a0e 0a0164 1209 21000000000000e03f",
		},
		{"CPU", "cpu", backends.CompileOptions{}, "1a 0f 08ffffffffffffffffff01 2001 2801 3a 21 0a1b " + hex.EncodeToString([]byte("xla_cpu_enable_fast_min_max")) + " 1202 1000"},
	} {
		got, err := encodeCompileOptions(test.platform, test.opts)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if found, want := hex.EncodeToString(got), strings.ReplaceAll(test.want, " ", ""); found != want {
			t.Errorf("%s: found %s, wanted %s", test.name, found, want)
		}
	}
}

func TestValues(t *testing.T) {
	want := map[string]any{"s": "text", "empty": "", "i": int64(-3), "list": []int64{1, -2}, "f": float32(0.5), "yes": true, "no": false}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	data, n, err := encodeValues(want, &pinner)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, decodeValues(data, n)); diff != "" {
		t.Error(diff)
	}
	if _, _, err := encodeValues(map[string]any{"x": 1.5}, &pinner); err == nil || !strings.Contains(err.Error(), "option x: found a float64") {
		t.Errorf("found %v, wanted an error that names x", err)
	}
	if decodeValues(nil, 3) != nil {
		t.Error("no values: found some")
	}
}

// TestHLOText prints a module made here field by field; what the plugins make is looked at in TestFacts.
func TestHLOText(t *testing.T) {
	msg := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	num := func(f protowire.Number, v int64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, f, protowire.VarintType), uint64(v))
	}
	sub := func(f protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, f, protowire.BytesType), msg(parts...))
	}
	str := func(f protowire.Number, s string) []byte { return sub(f, []byte(s)) }
	list := func(f protowire.Number, values ...int64) []byte {
		var b []byte
		for _, v := range values {
			b = protowire.AppendVarint(b, uint64(v))
		}
		return sub(f, b)
	}
	shape := func(f protowire.Number, kind int64, dims ...int64) []byte {
		order := make([]int64, len(dims))
		for i := range order {
			order[i] = int64(len(dims) - 1 - i)
		}
		return sub(f, num(2, kind), list(3, dims...), sub(5, list(1, order...)))
	}
	instruction := func(id int64, name, opcode string, parts ...[]byte) []byte {
		return sub(2, str(1, name), str(2, opcode), num(35, id), msg(parts...))
	}
	bf16 := str(13, "\x80\x3f\x00\xc0") // 1, -2
	module := msg(
		str(1, "m"), num(6, 2),
		sub(3, str(1, "sum"), num(5, 1), num(6, 3),
			instruction(1, "x", "parameter", shape(3, 11), num(9, 0)),
			instruction(2, "y", "parameter", shape(3, 11), num(9, 1)),
			instruction(3, "s", "add", shape(3, 11), list(36, 1, 2))),
		sub(3, str(1, "main"), num(5, 2), num(6, 30),
			sub(4, shape(1, 11, 1, 8, 8, 4), sub(2, num(2, 13), shape(4, 11, 2), shape(4, 4)), str(3, "image")),
			instruction(10, "p", "parameter", shape(3, 11, 1, 8, 8, 4), num(9, 0)),
			instruction(11, "w", "constant", shape(3, 16, 2), sub(8, shape(1, 16, 2), bf16)),
			instruction(12, "c", "convolution", shape(3, 11, 1, 4, 4, 4), list(36, 10, 11),
				sub(15, sub(1, num(1, 3), num(2, 2), num(3, 1), num(4, 1), num(5, 1), num(6, 1)), sub(1, num(1, 3), num(2, 2), num(3, 1), num(4, 0), num(5, 1), num(6, 1))),
				sub(16, num(7, 0), num(8, 3), list(11, 1, 2), num(3, 2), num(4, 3), list(6, 0, 1), num(9, 0), num(10, 3), list(12, 1, 2)), num(50, 4)),
			instruction(13, "r", "reduce", shape(3, 11, 2), list(36, 12, 99), list(14, 0, 1), list(38, 1)),
			instruction(14, "d", "dot", shape(3, 11, 2), list(36, 13, 13), sub(30, list(1, 1), list(2, 0)), sub(51, list(1, 2, 0))),
			instruction(15, "pad", "pad", shape(3, 11, 2), list(36, 13, 13), sub(21, sub(1, num(1, -1), num(2, 2)), sub(1, num(3, 1)))),
			instruction(16, "sl", "slice", shape(3, 11, 2), list(36, 13), sub(17, num(1, 0), num(2, 4), num(3, 1)), sub(17, num(1, 1), num(2, 9), num(3, 2))),
			instruction(17, "lt", "compare", shape(3, 1, 2), list(36, 13, 13), str(63, "LT")),
			instruction(18, "ar", "all-reduce", shape(3, 11, 2), list(36, 13), num(26, 5), sub(49, list(1, 0, 1)), sub(49, list(1, 2, 3)), list(38, 1)),
			instruction(19, "cc", "custom-call", shape(3, 11, 2), list(36, 13), str(28, "f\"g"), str(43, `{"k":1}`)),
			instruction(20, "g", "get-tuple-element", shape(3, 11, 2), list(36, 30), num(13, 1), sub(7, str(2, "jit/x")), sub(40, num(1, 3), list(3, 2, 1), list(4, 0, 1))),
			instruction(30, "t", "tuple", sub(3, num(2, 13), shape(4, 11, 2), shape(4, 4)), list(36, 13, 16)),
		),
	)
	const want = `HloModule m

%sum {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

ENTRY %main (image: f32[1,8,8,4]) -> (f32[2], s32[]) {
  %p = f32[1,8,8,4]{3,2,1,0} parameter(0)
  %w = bf16[2]{0} constant({1, -2})
  %c = f32[1,4,4,4]{3,2,1,0} convolution(%p, %w), window={size=3x3 stride=2x2 pad=1_1x1_0}, dim_labels=b01f_01io->b01f, feature_group_count=4
  %r = f32[2]{0} reduce(%c, %99), dimensions={0,1}, to_apply=%sum
  %d = f32[2]{0} dot(%r, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,default}
  %pad = f32[2]{0} pad(%r, %r), padding=-1_2x0_0_1
  %sl = f32[2]{0} slice(%r), slice={[0:4], [1:9:2]}
  %lt = pred[2]{0} compare(%r, %r), direction=LT
  %ar = f32[2]{0} all-reduce(%r), to_apply=%sum, channel_id=5, replica_groups={{0,1},{2,3}}
  %cc = f32[2]{0} custom-call(%r), custom_call_target="f\"g", backend_config={"k":1}
  %g = f32[2]{0} get-tuple-element(%t), index=1, sharding={devices=[2,1]0,1}, metadata={op_name="jit/x"}
  ROOT %t = (f32[2]{0}, s32[]) tuple(%r, %sl)
}
`
	got, err := hloText(module, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if wrapped, err := hloText(sub(1, module), true); err != nil || wrapped != got {
		t.Errorf("the module inside a configuration prints otherwise: %v", err)
	}
	if _, err := hloText(module[:len(module)-1], false); err == nil {
		t.Error("a cut module: found no error")
	}
}

func FuzzHLOText(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'm'}, false)
	f.Add([]byte{0x0a, 4, 0x0a, 2, 'm', 'n', 0x1a, 0}, true)
	f.Fuzz(func(_ *testing.T, data []byte, config bool) {
		_, _ = hloText(data, config)
	})
}

func testSignature() signature {
	return signature{name: "unet", partitions: 2, params: []signatureParam{
		{name: "x", shape: shapes.Make(dtypes.BFloat16, 1, 4, 300), donated: true},
		{name: "t", shape: shapes.Make(dtypes.Int32)},
	}}
}

func TestSignature(t *testing.T) {
	want := testSignature()
	got, data, err := decodeSerialized(encodeSerialized(want, []byte("code")))
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != "code" || got.name != want.name || got.partitions != want.partitions || len(got.params) != len(want.params) {
		t.Errorf("found %+v and %q, wanted %+v", got, data, want)
	}
	for i, p := range got.params {
		if w := want.params[i]; p.name != w.name || p.donated != w.donated || !p.shape.Equal(w.shape) {
			t.Errorf("parameter %d: found %+v, wanted %+v", i, p, w)
		}
	}
	if _, _, err := decodeSerialized(encodeSerialized(want, nil)); err == nil {
		t.Error("no executable: found no error")
	}
}

func FuzzSerialized(f *testing.F) {
	f.Add(encodeSerialized(testSignature(), []byte("code")))
	f.Add([]byte(serialMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, executable, err := decodeSerialized(data)
		if err != nil {
			return
		}
		if _, again, err := decodeSerialized(encodeSerialized(s, executable)); err != nil || string(again) != string(executable) {
			t.Errorf("encoding what was decoded: %v", err)
		}
	})
}

// TestQuiet checks in a process of its own that a plugin writes nothing to standard error, on good programs and on bad ones.
func TestQuiet(t *testing.T) {
	const variable = "PRECAST_TEST_QUIET"
	if os.Getenv(variable) != "" {
		c := testClient(t, backends.ClientOptions{})
		serialized, err := compile(t, c, addProgram, backends.CompileOptions{}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.LoadExecutable(t.Context(), serialized, backends.CompileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_ = e.Close()
		bad := *addProgram
		bad.Code = []byte("module { nonsense }")
		if _, err := c.Compile(t.Context(), &bad, backends.CompileOptions{}); err == nil {
			t.Error("found no error")
		}
		return
	}
	testPlugin(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestQuiet$")
	cmd.Env = append(os.Environ(), variable+"=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("standard error:\n%s", stderr.String())
	}
}

// TestTPUWithout checks that no client of a TPU is asked for where there is none: it would not return.
func TestTPUWithout(t *testing.T) {
	if tpuPresent() {
		t.Skip("this machine has a TPU")
	}
	p := &Plugin{name: "libtpu.so"}
	if _, err := p.NewClient(backends.ClientOptions{}); backends.CodeOf(err) != backends.Unavailable {
		t.Errorf("found %v, wanted UNAVAILABLE", err)
	}
}

// BenchmarkExecute is the cost of a call without the computation, with few and with many arguments.
func BenchmarkExecute(b *testing.B) {
	c := testClient(b, backends.ClientOptions{})
	e, err := c.Compile(b.Context(), addProgram, backends.CompileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	x := upload(b, c, 1, 2, 3, 4)
	args := []backends.Buffer{x, x}
	for b.Loop() {
		r, err := e.Execute(b.Context(), args, backends.ExecuteOptions{})
		if err != nil {
			b.Fatal(err)
		}
		_ = r[0].Delete()
	}
}

// BenchmarkFromHost compares the copy of 256 MB with none.
func BenchmarkFromHost(b *testing.B) {
	c := testClient(b, backends.ClientOptions{})
	const n = 256 << 20
	data := alignedBytes(n, 0)
	for i := 0; i < n; i += 4096 {
		data[i] = 1
	}
	shape := shapes.Make(dtypes.Float32, n/4)
	for name, semantics := range map[string]backends.HostSemantics{"copy": backends.CopyDuringCall, "zerocopy": backends.ZeroCopy} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				buf, err := c.BufferFromHost(data, shape, backends.HostOptions{Semantics: semantics})
				if err != nil {
					b.Fatal(err)
				}
				if err := errors.Join(buf.Await(b.Context()), buf.Delete()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
