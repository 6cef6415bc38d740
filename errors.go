package precast

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"precast/backends"
	"precast/cache"
	"precast/graph/pipelines"
)

// UserError is a fault of what the user gave: arguments, files, the machine. The command line exits with 1.
type UserError struct{ Err error }

func (e *UserError) Error() string { return e.Err.Error() }
func (e *UserError) Unwrap() error { return e.Err }

func userErrorf(format string, args ...any) error { return &UserError{fmt.Errorf(format, args...)} }

// asUser marks err, where it is not nil, as the user's.
func asUser(err error) error {
	if err == nil {
		return nil
	}
	return &UserError{err}
}

// InternalError is a fault of precast itself. The command line exits with 2.
type InternalError struct {
	// Phase is where it happened ("trace", "passes", "lower", "compile", "execute").
	Phase string
	// Program is what was being worked on.
	Program string
	// Dump is the file that the module was written to, empty where there is none.
	Dump string
	Err  error
}

func (e *InternalError) Error() string {
	s := fmt.Sprintf("BUG: %s of %s: %v", e.Phase, e.Program, e.Err)
	if e.Dump != "" {
		s += "; the module is in " + e.Dump
	}
	return s
}
func (e *InternalError) Unwrap() error { return e.Err }

// deviceError gives an error of the backend its kind: out of memory and an interruption are the user's, anything else is a fault of ours.
func deviceError(phase, program string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), backends.CodeOf(err) == backends.Cancelled:
		return asUser(err)
	case backends.CodeOf(err) == backends.ResourceExhausted:
		return asUser(fmt.Errorf("%s: out of memory: %w", program, err))
	}
	return &InternalError{Phase: phase, Program: program, Err: err}
}

// CompileNeededError says that Config.CacheOnly is set and a program would have to be compiled. The command line exits with 3.
type CompileNeededError struct {
	Program string
	// Key is the missing key; Differs says where the nearest entry differs from it, empty when there is none.
	Key     string
	Differs []string
	// Reason says why something that is there can't be used.
	Reason string
}

func (e *CompileNeededError) Error() string {
	s := fmt.Sprintf("%s would have to be compiled, which --cache-only forbids: key %s is missing", e.Program, e.Key)
	if e.Reason != "" {
		s += "; " + e.Reason
	}
	if len(e.Differs) > 0 {
		s += "; the nearest entry differs in " + strings.Join(e.Differs, "; ")
	}
	return s
}

func differs(want, found cache.Key) []string {
	var out []string
	for _, d := range want.Diff(found) {
		out = append(out, fmt.Sprintf("%s (wanted %s, entry has %s)", d.Name, orNone(d.Want), orNone(d.Found)))
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// ExitCode is the command line's exit code for an error: 0 for nil, 1 for the user's input, 2 for a fault of precast, 3 where a compile was needed
// and forbidden.
func ExitCode(err error) int {
	var user *UserError
	var needed *CompileNeededError
	var numbers *pipelines.NotFiniteError
	var operation *OperationNotFiniteError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &needed):
		return 3
	case errors.As(err, &user), errors.As(err, &numbers), errors.As(err, &operation):
		return 1
	}
	return 2
}
