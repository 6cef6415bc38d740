// Package plugin finds, installs and verifies PJRT plugins: shared libraries that Python packages carry. It never loads one.
//
// A plugin is pinned: the package's version, the SHA-256 of its wheel and of the library in it. pip fetches the wheel from the index
// that the user has configured; nothing here knows a host. What is installed lies in a folder of its own
// (PRECAST_PLUGIN_DIR, else the user's data folder), is used without network, and is verified before each use: by its hash when its size,
// modification time or inode have changed since the hash was computed, else by those.
package plugin

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Pin is a package of one version that carries a plugin.
type Pin struct {
	// Target is what the plugin computes on: "cpu", "tpu" or "cuda13".
	Target string
	// Package and Version name the Python package.
	Package, Version string
	// Licence is the package's own statement; Notice says what a user should know about it, if anything.
	Licence, Notice string
	// Wheels are the pinned wheels by GOOS/GOARCH.
	Wheels map[string]Wheel
}

// Wheel is one pinned file.
type Wheel struct {
	// SHA256 is the wheel's, LibrarySHA256 that of the library in it, in hexadecimal.
	SHA256, LibrarySHA256 string
	// Library is the library's path in the wheel.
	Library string
	// Size and LibrarySize are in bytes.
	Size, LibrarySize int64
	// Platform is the wheel's platform tag; Python is the version of a wheel that is made for one, such as "3.11", else empty.
	Platform, Python string
}

// Pins are the plugins that can be installed. The first of a target that has a wheel for the platform is the target's default.
var Pins = []Pin{
	{
		Target: "cpu", Package: "lammps-jax-pjrt-cpu", Version: "0.11.2", Licence: "Apache-2.0",
		Wheels: map[string]Wheel{"linux/amd64": {
			SHA256:        "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
			LibrarySHA256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
			Library:       "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
			Size:          62711338, LibrarySize: 201600336,
			Platform: "manylinux_2_27_x86_64",
		}},
	},
	{
		Target: "cpu", Package: "fastatomstruct-xla-cpu", Version: "2026.6.23", Licence: "Apache-2.0",
		Wheels: map[string]Wheel{"linux/amd64": {
			SHA256:        "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
			LibrarySHA256: "0a0fe56ca17be9efc7b942e89e534e5e0ad4a0f1e369b66d27b62184509015b9",
			Library:       "fastatomstruct_xla_cpu/libpjrt_cpu.so",
			Size:          63200622, LibrarySize: 273768800,
			Platform: "manylinux_2_27_x86_64",
		}},
	},
	{
		Target: "cpu", Package: "xla-cpu-pjrt", Version: "0.0.1", Licence: "not stated in the package; XLA itself is Apache-2.0",
		Wheels: map[string]Wheel{
			"linux/amd64": {
				SHA256:        "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
				LibrarySHA256: "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc",
				Library:       "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
				Size:          63461052, LibrarySize: 259284552,
				Platform: "manylinux_2_27_x86_64",
			},
			"linux/arm64": {
				SHA256:        "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
				LibrarySHA256: "fcf411f3e8ff635c2b2cf87215aa7016f460e66d236c3db08309e7486583532d",
				Library:       "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
				Size:          49514947, LibrarySize: 200328224,
				Platform: "manylinux_2_27_aarch64",
			},
		},
	},
	{
		Target: "tpu", Package: "libtpu", Version: "0.0.52", Licence: "Google Cloud Platform Terms of Service",
		Notice: "libtpu is not open source: by using it you accept Google Cloud's terms",
		Wheels: map[string]Wheel{"linux/amd64": {
			SHA256:        "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140",
			LibrarySHA256: "f86de4d04a058e6b5101f73e0824b95f27e2cec996d2b9191d9cffda75c03077",
			Library:       "libtpu/libtpu.so",
			Size:          137064406, LibrarySize: 467479448,
			Platform: "manylinux_2_31_x86_64", Python: "3.11",
		}},
	},
	{
		Target: "cuda13", Package: "jax-cuda13-pjrt", Version: "0.12.0.1", Licence: "Apache-2.0",
		Notice: "it needs NVIDIA's driver and CUDA 13 libraries on the machine, under NVIDIA's terms",
		Wheels: map[string]Wheel{
			"linux/amd64": {
				SHA256:        "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
				LibrarySHA256: "b6de513893c09af2c77e71afcef46d9706f8c259337cdef4cd5cae2353886f75",
				Library:       "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
				Size:          134922808, LibrarySize: 395967648,
				Platform: "manylinux_2_27_x86_64",
			},
			"linux/arm64": {
				SHA256:        "40758d042df8c06991b6a1a8016b56e9cefb1ed4c677c062125c3eb71c3dab97",
				LibrarySHA256: "b63ecc0361e3f8a9da9aad3df39e93a96092fb4ee20a174ccba2688fda4cb53f",
				Library:       "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
				Size:          128847710, LibrarySize: 376071120,
				Platform: "manylinux_2_27_aarch64",
			},
		},
	},
}

// Platform is the GOOS/GOARCH that wheels are looked up by.
func Platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// Name is the plugin's full name, "cpu:xla-cpu-pjrt".
func (p *Pin) Name() string { return p.Target + ":" + p.Package }

// wheel returns the pin's wheel for this platform.
func (p *Pin) wheel() (Wheel, error) {
	w, ok := p.Wheels[Platform()]
	if !ok {
		platforms := make([]string, 0, len(p.Wheels))
		for name := range p.Wheels {
			platforms = append(platforms, name)
		}
		slices.Sort(platforms)
		return w, fmt.Errorf("plugin %s: %s %s has no wheel for %s, only for %s; the Go backend works everywhere",
			p.Name(), p.Package, p.Version, Platform(), strings.Join(platforms, " and "))
	}
	return w, nil
}

// Find finds a pin by target ("cpu": the default of the target on this platform), or by full name ("cpu:xla-cpu-pjrt").
func Find(pins []Pin, name string) (*Pin, error) {
	var first *Pin
	var names []string
	for i := range pins {
		p := &pins[i]
		names = append(names, p.Name())
		if name == p.Name() {
			return p, nil
		}
		if name != p.Target {
			continue
		}
		if _, ok := p.Wheels[Platform()]; ok {
			return p, nil
		}
		if first == nil {
			first = p
		}
	}
	if first == nil {
		return nil, fmt.Errorf("plugin %q is not known: found no such name, wanted cpu, tpu, cuda13 or one of %s", name, strings.Join(names, ", "))
	}
	return first, nil
}
