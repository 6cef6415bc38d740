//go:build linux

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gomlx/compute/dtypes"

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
