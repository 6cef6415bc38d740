package precast

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"precast/backends/pjrt"
	"precast/backends/plugin"
	"precast/cache"
	"precast/graph/checkpoint/hub"
)

// OpenCache opens the cache in dir; "" is $PRECAST_CACHE_DIR, else the user's cache folder. warn may be nil.
func OpenCache(dir string, warn func(format string, args ...any)) *cache.Store {
	return cache.Open(dir, cache.Options{Warn: warn})
}

// Plugins opens the folder that PJRT plugins are installed in.
func Plugins() (*plugin.Store, error) { return plugin.Open() }

// PluginPlatform is the GOOS/GOARCH that plugins are looked up by.
func PluginPlatform() string { return plugin.Platform() }

// IsNotInstalled reports whether an error says that a plugin isn't there.
func IsNotInstalled(err error) bool {
	var missing *plugin.NotInstalledError
	return errors.As(err, &missing)
}

// CacheWeights is the kind of entries that hold weights, see Config.WeightsCache.
const CacheWeights = string(cache.Weights)

// What the cache and the plugins' folder take and report, see packages cache and plugin.
type (
	CacheEntry           = cache.Entry
	CacheStatus          = cache.Status
	CacheGroup           = cache.Group
	CacheCleanupOptions  = cache.CleanupOptions
	CacheVerifyReport    = cache.VerifyReport
	CacheRemovalReport   = cache.RemovalReport
	PluginInstallOptions = plugin.InstallOptions
)

// PluginInfo is what a plugin says about itself.
type PluginInfo struct {
	// API is the version of the PJRT C API that it implements.
	API string `json:"api,omitempty"`
	// Platform and PlatformVersion are its client's; empty for a plugin of which no client was made.
	Platform        string         `json:"platform,omitempty"`
	PlatformVersion string         `json:"platform_version,omitempty"`
	Attributes      map[string]any `json:"attributes,omitempty"`
	// Problem says why the plugin can't be used.
	Problem string `json:"problem,omitempty"`
}

// DescribePlugin loads the plugin at path into this process and asks it. client says that a client may be made: only where the plugin is
// for the CPU, since another might take a device from a running process, or wait for one that isn't there.
func DescribePlugin(path string, client bool) (*PluginInfo, error) {
	d, err := pjrt.Describe(path, client)
	if err != nil {
		return nil, asUser(err)
	}
	return &PluginInfo{
		API: fmt.Sprintf("%d.%d", d.Major, d.Minor), Platform: d.Platform, PlatformVersion: d.PlatformVersion, Attributes: d.Attributes,
	}, nil
}

// describeLimit is how long a plugin may take to say what it is.
const describeLimit = 30 * time.Second

// DescribePluginApart is DescribePlugin in a process of its own with a time limit: a plugin that crashes or hangs is a Problem. command is what
// to run, with the path at its end; it writes a PluginInfo as JSON.
func DescribePluginApart(ctx context.Context, path string, command ...string) *PluginInfo {
	return describeWithin(ctx, describeLimit, path, command...)
}

func describeWithin(parent context.Context, limit time.Duration, path string, command ...string) *PluginInfo {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], slices.Concat(command[1:], []string{path})...)
	cmd.WaitDelay = time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	info := &PluginInfo{}
	var exit *exec.ExitError
	switch {
	case parent.Err() != nil:
		info.Problem = parent.Err().Error()
	case ctx.Err() != nil:
		info.Problem = fmt.Sprintf("no answer within %v", limit)
	case errors.As(err, &exit) && exit.ExitCode() < 0:
		info.Problem = "it ended the process that loaded it: " + exit.String()
	case err != nil:
		info.Problem = lastLine(stderr.String(), err)
	default:
		if err := json.Unmarshal(out.Bytes(), info); err != nil {
			info.Problem = fmt.Sprintf("its description can't be read: %v", err)
		}
	}
	return info
}

// lastLine is the last line that a child wrote, without the prefix of the command line, else err.
func lastLine(text string, err error) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := strings.TrimPrefix(lines[len(lines)-1], "precast: error: "); last != "" {
		return last
	}
	return err.Error()
}

// Env is what decides how precast runs here.
type Env struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	// Platform is GOOS/GOARCH, CPU the processor's name, Features what executables for it are keyed by.
	Platform string `json:"platform"`
	CPU      string `json:"cpu,omitempty"`
	Features string `json:"cpu_features"`
	CPUs     int    `json:"cpus"`
	// Threads is the number of threads that CPU code is compiled for.
	Threads         int   `json:"threads"`
	MemoryTotal     int64 `json:"memory_total_bytes,omitempty"`
	MemoryAvailable int64 `json:"memory_available_bytes,omitempty"`
	// Backend is "pjrt" or "go": what --backend auto takes. Plugin is set for pjrt.
	Backend string     `json:"backend"`
	Plugin  *EnvPlugin `json:"plugin,omitempty"`
	// Problem says why there is no plugin.
	Problem    string        `json:"problem,omitempty"`
	PluginDir  string        `json:"plugin_dir,omitempty"`
	Cache      *cache.Status `json:"cache,omitempty"`
	CacheError string        `json:"cache_error,omitempty"`
	// Variables are the environment variables that change what precast does, those that are set.
	Variables []cache.Field `json:"variables"`
}

// EnvPlugin is the plugin that programs run on.
type EnvPlugin struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	PluginInfo
}

// variables are the environment variables that change what precast or a plugin does; none of them holds a secret.
var variables = append([]string{
	cache.DirVariable, plugin.DirVariable, plugin.PluginVariable, "XLA_FLAGS", "PJRT_NPROC", "NPROC", "GOMAXPROCS", "GOMEMLIMIT",
	"XDG_CACHE_HOME", "XDG_DATA_HOME", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "ALLOW_MULTIPLE_LIBTPU_LOAD",
}, hub.Variables...)

// Environment describes this machine and what precast would run on. describe asks a plugin, see DescribePluginApart.
func Environment(cacheDir string, describe func(path string, client bool) *PluginInfo) *Env {
	e := &Env{
		Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuName(), Features: cpuFeatures(),
		CPUs: runtime.NumCPU(), Threads: backendThreads(),
		MemoryTotal: procKilobytes("/proc/meminfo", "MemTotal:"), MemoryAvailable: availableMemory(), Variables: []cache.Field{},
	}
	for _, name := range variables {
		if value, ok := os.LookupEnv(name); ok {
			e.Variables = append(e.Variables, cache.Field{Name: name, Value: value})
		}
	}
	if dir, err := plugin.DefaultDir(); err == nil {
		e.PluginDir = dir
	}
	e.Backend = "go"
	if os.Getenv(plugin.PluginVariable) != "go" {
		if p, err := plugin.Default(); err != nil {
			e.Problem = err.Error()
		} else {
			e.Backend = "pjrt"
			e.Plugin = &EnvPlugin{Name: p.Name, Path: p.Path, SHA256: p.SHA256, PluginInfo: *describe(p.Path, isCPU(p.Name))}
		}
	}
	status, err := cache.Open(cacheDir, cache.Options{}).Status()
	if err != nil {
		e.CacheError = err.Error()
	} else {
		e.Cache = status
	}
	return e
}

// isCPU tells from a plugin's full name whether it is for the CPU.
func isCPU(name string) bool { return name == "cpu" || strings.HasPrefix(name, "cpu:") }

// cpuName is the processor's model name, "" where the system does not tell.
func cpuName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
