package precast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"precast/graph/checkpoint/hub"
	"precast/graph/pipelines"
)

// Locate turns what a user names a model by into a path that Open and Inspect take. What is there, a folder or a file, is returned as it is. Else
// ORG/NAME[@REVISION] is a model at the Hugging Face hub: what is read of it is downloaded into the cache that Python's huggingface_hub keeps, where it
// is not there already, and its folder returned. Config.Revision, Variant and ConfigOnly say what of it, Config.Download is told how far it is.
//
// HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE and the token file mean what they mean there.
func Locate(ctx context.Context, path string, cfg Config) (string, error) {
	if path == "" {
		return "", userErrorf("model: found an empty name, wanted a folder, an artifact or ORG/NAME[@REVISION] at the hub")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		if cfg.Revision != "" {
			return "", userErrorf("revision: found %q, but %s is a file or folder here; a revision is one of a model at the hub", cfg.Revision, path)
		}
		return path, nil
	}
	repo, revision, ok := hub.ParseName(path)
	if !ok {
		return "", userErrorf("%s: no such file or folder; a model at the hub is named ORG/NAME[@REVISION]", path)
	}
	if revision != "" && cfg.Revision != "" && revision != cfg.Revision {
		return "", userErrorf("revision: found %q and %q; give it once", revision, cfg.Revision)
	}
	if revision == "" {
		revision = cfg.Revision
	}
	o := hub.Options{Revision: revision, Variant: cfg.Variant, ConfigOnly: cfg.ConfigOnly, Skip: notRead, Progress: cfg.Download}
	if !cfg.ConfigOnly {
		o.Accept = knownClass
	}
	if cfg.Log != nil {
		o.Warn = func(format string, args ...any) { cfg.Log.Warn(fmt.Sprintf(format, args...)) }
	}
	dir, err := hub.Fetch(ctx, repo, o)
	return dir, asUser(err)
}

// knownClass refuses a pipeline class that precast has no recipe for, before its weights are downloaded.
func knownClass(class string) error {
	if slices.Contains(pipelines.Classes(), class) {
		return nil
	}
	return fmt.Errorf("pipeline class %q is not supported; known are %s", class, strings.Join(pipelines.Classes(), ", "))
}

// notRead says that a component is none that a pipeline reads: what screens pictures, and what takes pictures as prompts.
func notRead(component, class string) bool {
	for _, end := range []string{"SafetyChecker", "ImageProcessor", "FeatureExtractor"} {
		if strings.HasSuffix(class, end) {
			return true
		}
	}
	return component == "image_encoder"
}
