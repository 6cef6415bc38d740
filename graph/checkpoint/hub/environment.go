package hub

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Environment is what Python's huggingface_hub reads from the environment (huggingface_hub/constants.py, utils/_auth.py), with the same meaning.
type Environment struct {
	// Endpoint is HF_ENDPOINT, or the hub's own address; no slash at its end.
	Endpoint string
	// Cache is the folder of models: HF_HUB_CACHE, else hub in HF_HOME, else huggingface/hub in the user's cache folder.
	Cache string
	// Token is HF_TOKEN, or what the token file holds; empty where there is none, or HF_HUB_DISABLE_IMPLICIT_TOKEN is set.
	Token string
	// Offline is HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE.
	Offline bool
}

// DefaultEndpoint is where models are when HF_ENDPOINT names no other place.
const DefaultEndpoint = "https://huggingface.co"

// Variables are the environment variables that FromEnvironment reads; those with a token are not among them.
var Variables = []string{"HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"}

// FromEnvironment reads the variables.
func FromEnvironment() Environment {
	e := Environment{Endpoint: DefaultEndpoint, Offline: isTrue("HF_HUB_OFFLINE") || isTrue("TRANSFORMERS_OFFLINE")}
	if v := os.Getenv("HF_ENDPOINT"); v != "" {
		e.Endpoint = strings.TrimRight(v, "/")
	}
	home := expand(os.Getenv("HF_HOME"))
	if home == "" {
		cache := expand(os.Getenv("XDG_CACHE_HOME"))
		if cache == "" {
			cache = expand("~/.cache")
		}
		home = filepath.Join(cache, "huggingface")
	}
	for _, v := range []string{os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(home, "hub")} {
		if v != "" {
			e.Cache = expand(v)
			break
		}
	}
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if e.Token == "" {
			e.Token = strings.TrimSpace(os.Getenv(name))
		}
	}
	if e.Token == "" {
		file := expand(os.Getenv("HF_TOKEN_PATH"))
		if file == "" {
			file = filepath.Join(home, "token")
		}
		if text, err := os.ReadFile(file); err == nil {
			e.Token = strings.TrimSpace(string(text))
		}
	}
	if isTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		e.Token = ""
	}
	return e
}

func isTrue(variable string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(os.Getenv(variable)))
}

// expand replaces variables and a ~ at the start, as a shell does.
func expand(path string) string {
	path = os.ExpandEnv(path)
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/' || rest[0] == filepath.Separator) {
		if home, err := os.UserHomeDir(); err == nil {
			return home + rest
		}
	}
	return path
}
