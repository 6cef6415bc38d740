package precast

import (
	"os"
	"path/filepath"
	"strings"
)

// CheckOutputs refuses output paths that would destroy what the run reads, a file of the checkpoint folder, the artifact or a LoRA, and two
// outputs of one name. Empty paths are left out. CheckApart is for the files that a request was read from.
func (p *Pipeline) CheckOutputs(paths ...string) error {
	folder := realPath(p.ck.Dir()) + string(filepath.Separator)
	seen := map[string]bool{}
	for _, path := range paths {
		if path == "" {
			continue
		}
		real := realPath(path)
		switch {
		case strings.HasPrefix(real, folder):
			return userErrorf("output %q lies in the checkpoint folder %s; write somewhere else", path, p.ck.Dir())
		case p.artifact != nil && real == realPath(p.artifact.path):
			return userErrorf("output %q is the artifact that is read; write somewhere else", path)
		case seen[real]:
			return userErrorf("output %q is named twice; give two names", path)
		}
		seen[real] = true
	}
	specs, err := loraSpecs(p.cfg.LoRAs)
	if err != nil {
		return err
	}
	for _, s := range specs {
		if err := CheckApart("--lora", s.Path, paths...); err != nil {
			return err
		}
	}
	return nil
}

// CheckApart refuses output paths that are the file, FILE or FILE.safetensors:TENSOR, that the argument names to be read, or are the folder that it
// names or lie in it. Empty paths are left out.
func CheckApart(argument, read string, outputs ...string) error {
	read, _, _ = splitTensorSpec(read)
	in, err := os.Stat(read)
	if err != nil || !in.IsDir() && !in.Mode().IsRegular() {
		return nil // whoever reads it says what is wrong
	}
	for _, path := range outputs {
		if in.IsDir() && path != "" && strings.HasPrefix(realPath(path)+string(filepath.Separator), realPath(read)+string(filepath.Separator)) {
			return userErrorf("output %q lies in the folder %s that %s reads; write somewhere else", path, read, argument)
		}
		if out, err := os.Stat(path); err == nil && os.SameFile(in, out) {
			return userErrorf("output %q is the file that %s reads; write somewhere else", path, argument)
		}
	}
	return nil
}

// realPath is a path without links and dots; of a file that is not there yet, its folder's with its name.
func realPath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}
