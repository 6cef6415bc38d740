//go:build !linux && !darwin

package checkpoint

import "os"

// changeTime is 0: the system does not tell it in this form.
func changeTime(os.FileInfo) int64 { return 0 }

// fileNumber is 0: the system does not tell it in this form.
func fileNumber(os.FileInfo) uint64 { return 0 }
