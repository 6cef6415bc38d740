package pjrt

import "precast/backends"

// Description is what a list of plugins tells about one.
type Description struct {
	// Major and Minor are the version of the PJRT C API.
	Major, Minor int
	// Attributes are the plugin's own facts.
	Attributes map[string]any
	// Platform and PlatformVersion are the client's; empty where no client was made.
	Platform, PlatformVersion string
}

// Describe loads a plugin and tells what it says about itself. It makes a client on CPU plugins alone: another one might take a device
// from a running process, or wait for one that isn't there. cpu says that the plugin is one.
func Describe(path string, cpu bool) (Description, error) {
	p, err := Load(path)
	if err != nil {
		return Description{}, err
	}
	d := Description{Major: p.major, Minor: p.minor, Attributes: p.attributes}
	if !cpu {
		return d, nil
	}
	c, err := p.NewClient(backends.ClientOptions{})
	if err != nil {
		return d, err
	}
	d.Platform, d.PlatformVersion = c.Platform(), c.PlatformVersion()
	return d, c.Close()
}
