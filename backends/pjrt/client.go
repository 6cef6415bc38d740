package pjrt

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"precast/backends"
)

// Client is a client of a plugin.
type Client struct {
	plugin   *Plugin
	api      *api
	handle   uintptr
	platform string
	version  string
	devices  []*Device
	byHandle map[uintptr]*Device
	topology *Topology

	mu     sync.Mutex
	closed bool
	// open counts the buffers, executables and calls that need the client.
	open atomic.Int64
	// due are the Release functions of host memory that the plugin has yet to give back.
	due sync.WaitGroup
}

// NewClient implements backends.Plugin. On a plugin that isn't for the CPU the device count is not an option and must be 0.
func (p *Plugin) NewClient(opts backends.ClientOptions) (backends.Client, error) {
	if err := p.checkTPU(); err != nil {
		return nil, err
	}
	op := "create client of " + p.name
	if opts.DeviceCount < 0 {
		return nil, backends.Errorf(backends.InvalidArgument, op, "device count: found %d, wanted 0 or more", opts.DeviceCount)
	}
	values := maps.Clone(opts.Extra)
	if values == nil {
		values = map[string]any{}
	}
	const countOption = "cpu_device_count"
	_, given := values[countOption]
	if !given {
		values[countOption] = int64(max(opts.DeviceCount, 1))
	}
	handle, err := p.createClient(values, op)
	if err != nil && !given && opts.DeviceCount == 0 && backends.CodeOf(err) == backends.InvalidArgument {
		// Not a CPU plugin.
		delete(values, countOption)
		handle, err = p.createClient(values, op)
	}
	if err != nil {
		return nil, err
	}
	c := &Client{plugin: p, api: p.api, handle: handle}
	if err := c.describe(); err != nil {
		_ = c.api.destroy(fnClientDestroy, handle, liveClient)
		return nil, err
	}
	return c, nil
}

func (p *Plugin) createClient(values map[string]any, op string) (uintptr, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	data, count, err := encodeValues(values, &pinner)
	if err != nil {
		return 0, backends.Errorf(backends.InvalidArgument, op, "%v", err)
	}
	args := setSize(&clientCreateArgs{options: data, numOptions: count})
	if err := p.api.call(fnClientCreate, unsafe.Pointer(args), op); err != nil {
		return 0, err
	}
	live[liveClient].Add(1)
	return args.client, nil
}

// describe reads what never changes about the client.
func (c *Client) describe() error {
	var err error
	if c.platform, err = c.api.text(fnClientPlatformName, c.handle, "read the platform's name"); err != nil {
		return err
	}
	c.platform = strings.ToLower(c.platform)
	if c.version, err = c.api.text(fnClientPlatformVersion, c.handle, "read the platform's version"); err != nil {
		return err
	}
	args := setSize(&handleBytesArgs{handle: c.handle})
	if err := c.api.call(fnClientAddressableDevices, unsafe.Pointer(args), "list the devices"); err != nil {
		return err
	}
	c.byHandle = map[uintptr]*Device{}
	for _, h := range goSlice[uintptr](args.data, args.size) {
		d, err := c.newDevice(h)
		if err != nil {
			return err
		}
		c.devices = append(c.devices, d)
		c.byHandle[h] = d
	}
	if len(c.devices) == 0 {
		return backends.Errorf(backends.FailedPrecondition, "list the devices", "%s shows no device", c.plugin.name)
	}
	topology := setSize(&handleOutArgs{handle: c.handle})
	// Not every plugin describes its topology; only cache keys and compiling ahead of time want it.
	if err := c.api.call(fnClientTopology, unsafe.Pointer(topology), "read the client's topology"); err == nil {
		c.topology, _ = newTopology(c.api, topology.out, false)
	}
	return nil
}

// Platform implements backends.Client.
func (c *Client) Platform() string { return c.platform }

// PlatformVersion implements backends.Client.
func (c *Client) PlatformVersion() string { return c.version }

// Devices implements backends.Client.
func (c *Client) Devices() []backends.Device {
	list := make([]backends.Device, len(c.devices))
	for i, d := range c.devices {
		list[i] = d
	}
	return list
}

// Topology implements backends.Client.
func (c *Client) Topology() backends.Topology {
	if c.topology == nil {
		return nil
	}
	return c.topology
}

// enter keeps the client open during a call, or for as long as a buffer or executable lives; leave undoes it.
func (c *Client) enter(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return backends.Errorf(backends.FailedPrecondition, op, "the client is closed")
	}
	c.open.Add(1)
	return nil
}

func (c *Client) leave() { c.open.Add(-1) }

// releaseTime is how long Close waits for what is still due of host memory. A plugin that never says it is done with a buffer must not hold it up for ever.
const releaseTime = 10 * time.Second

// Close implements backends.Client. The Release functions of deleted buffers have returned when it does: plugins say that they are done with host memory on
// threads of their own, a moment after the deletion.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if n := c.open.Load(); n > 0 {
		c.mu.Unlock()
		return backends.Errorf(backends.FailedPrecondition, "close client of "+c.plugin.name,
			"%d buffers and executables are still open (live in the process: %s)", n, liveText())
	}
	c.closed = true
	c.mu.Unlock()
	released := make(chan struct{})
	go func() {
		c.due.Wait()
		close(released)
	}()
	select {
	case <-released:
	case <-time.After(releaseTime):
	}
	return c.api.destroy(fnClientDestroy, c.handle, liveClient)
}

func liveText() string {
	var parts []string
	for k := range live {
		if n := live[k].Load(); n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", liveNames[k], n))
		}
	}
	return strings.Join(parts, ", ")
}

// device finds the device of HostOptions.
func (c *Client) device(d backends.Device, op string) (*Device, error) {
	if d == nil {
		return c.devices[0], nil
	}
	if own, ok := d.(*Device); ok && own.client == c {
		return own, nil
	}
	return nil, backends.Errorf(backends.InvalidArgument, op, "device %d belongs to another client", d.ID())
}

// Device is an addressable device of a client.
type Device struct {
	client *Client
	handle uintptr
	id     int
	kind   string
}

func (c *Client) newDevice(handle uintptr) (*Device, error) {
	const op = "describe a device"
	description := setSize(&handleOutArgs{handle: handle})
	if err := c.api.call(fnDeviceGetDescription, unsafe.Pointer(description), op); err != nil {
		return nil, err
	}
	id := setSize(&handleInt32Args{handle: description.out})
	if err := c.api.call(fnDeviceDescriptionID, unsafe.Pointer(id), op); err != nil {
		return nil, err
	}
	kind, err := c.api.text(fnDeviceDescriptionKind, description.out, op)
	if err != nil {
		return nil, err
	}
	return &Device{client: c, handle: handle, id: int(id.out), kind: kind}, nil
}

// ID implements backends.Device.
func (d *Device) ID() int { return d.id }

// Kind implements backends.Device.
func (d *Device) Kind() string { return d.kind }

// MemoryStats implements backends.Device.
func (d *Device) MemoryStats() (backends.DeviceMemory, error) {
	op := fmt.Sprintf("read the memory use of device %d", d.id)
	if err := d.client.enter(op); err != nil {
		return backends.DeviceMemory{}, err
	}
	defer d.client.leave()
	args := setSize(&deviceMemoryArgs{device: d.handle})
	if err := d.client.api.call(fnDeviceMemoryStats, unsafe.Pointer(args), op); err != nil {
		return backends.DeviceMemory{}, err
	}
	m := backends.DeviceMemory{InUse: args.inUse, PeakInUse: -1, Limit: -1}
	if args.peakSet {
		m.PeakInUse = args.peak
	}
	if args.limitSet {
		m.Limit = args.limit
	}
	return m, nil
}
