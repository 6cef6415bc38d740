package precast

import (
	"path/filepath"
	"strings"
)

// CheckOutputs refuses output paths that would destroy what the run reads, a file of the checkpoint folder or the artifact, and two outputs of
// one name. Empty paths are left out.
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
