package pjrt

import (
	"path/filepath"

	"precast/backends"
)

// prepareTPU sets what libtpu must find in the environment to describe a topology on a machine without a TPU: it would ask a metadata
// server for minutes, and refuse a second process.
func prepareTPU() {
	if tpuPresent() {
		return
	}
	setDefaultEnv("TPU_SKIP_MDS_QUERY", "1")
	setDefaultEnv("TPU_WORKER_HOSTNAMES", "localhost")
	setDefaultEnv("TPU_WORKER_ID", "0")
	setDefaultEnv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
	// Else it leaves log files in the temporary folder.
	setDefaultEnv("TPU_LOG_DIR", "disabled")
}

// tpuPresent looks for the device files of a TPU.
func tpuPresent() bool {
	for _, pattern := range []string{"/dev/accel*", "/dev/vfio/[0-9]*"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

// checkTPU refuses a client where there is no TPU: libtpu would not return.
func (p *Plugin) checkTPU() error {
	if p.isTPU() && !tpuPresent() {
		return backends.Errorf(backends.Unavailable, "create client of "+p.name,
			"this machine has no TPU (no /dev/accel* or /dev/vfio/N): it can compile for one, not run on it")
	}
	return nil
}
