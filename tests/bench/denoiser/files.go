//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/gomlx/compute/dtypes"
	"golang.org/x/sys/unix"

	"precast"
	"precast/graph/checkpoint"
)

// convertWeights copies a checkpoint folder, its transformer or UNet widened to float32 in a file that needs no copy when it is read.
func convertWeights(dir, out string) error {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	name := "transformer"
	if !ck.Has(name) {
		name = "unet"
	}
	comp, err := ck.Component(name)
	if err != nil {
		return err
	}
	tensors, err := comp.Tensors()
	if err != nil {
		return err
	}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(out, rel), 0o755)
		}
		if filepath.Dir(rel) == name && filepath.Ext(rel) != ".json" || filepath.Base(rel) == "diffusion_pytorch_model.safetensors.index.json" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(out, rel), data, 0o644)
	}); err != nil {
		return err
	}
	var items []checkpoint.Item
	for key, t := range tensors {
		data := make([]byte, 4*t.Len())
		if err := t.Convert(data, dtypes.Float32); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		items = append(items, checkpoint.Item{Key: key, DType: dtypes.Float32, Shape: t.Shape, Data: data})
	}
	return checkpoint.WriteFile(filepath.Join(out, name, "diffusion_pytorch_model.safetensors"), items, map[string]string{"format": "pt"})
}

func float32Bytes(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// floats reads a tensor of float32, or of the dtype that its shape says.
func floats(t precast.HostTensor) []float32 {
	data := t.Data
	if d := t.Shape.DType; d != dtypes.Float32 && d != dtypes.InvalidDType {
		data = make([]byte, 4*len(t.Data)/d.Size())
		if err := checkpoint.ConvertBytes(data, dtypes.Float32, t.Data, d); err != nil {
			return nil
		}
	}
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// bootTime is the time since the machine started.
func bootTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
