package trace

import (
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// Error is a failure while a network's code ran: which network, where in it, and what gomlx or the network said.
//
// Error() is one line, "trace: transformer: at transformer_blocks.3.attn: <message>"; %+v adds the Go stack of the failure.
type Error struct {
	// Component is the network's name ("transformer"), or that of the traced function.
	Component string
	// Scope is the module path that failed ("transformer_blocks.3.attn"); empty at top level.
	Scope string
	// Err is what was reported.
	Err error
	// Stack is the Go stack at the failure; nil when the failure is not a panic.
	Stack []byte
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("trace: ")
	if e.Component != "" {
		b.WriteString(e.Component + ": ")
	}
	if e.Scope != "" {
		b.WriteString("at " + e.Scope + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Format implements fmt.Formatter: %+v is the message followed by the stack, every other verb the message.
func (e *Error) Format(s fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(s, "%q", e.Error())
		return
	}
	io.WriteString(s, e.Error())
	if verb == 'v' && s.Flag('+') && len(e.Stack) > 0 {
		io.WriteString(s, "\n")
		s.Write(e.Stack)
	}
}

// panicked turns the value of a panic into an Error at scope. It must be called while the panic unwinds, so that the stack is the
// failure's. An Error that an inner scope made is kept.
func panicked(value any, scope string) *Error {
	switch v := value.(type) {
	case *Error:
		return v
	case error:
		return &Error{Scope: scope, Err: v, Stack: debug.Stack()}
	default:
		return &Error{Scope: scope, Err: fmt.Errorf("%v", v), Stack: debug.Stack()}
	}
}
