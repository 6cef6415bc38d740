package backends

import (
	"context"
	"errors"
	"fmt"
)

// Code is the kind of an error: PJRT_Error_Code, whose numbers are those of absl::StatusCode.
type Code int

// The codes. Their texts are as in absl.
const (
	OK                 Code = 0
	Cancelled          Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

var codeNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED",
}

// String returns the code's name in capitals (INVALID_ARGUMENT).
func (c Code) String() string {
	if c >= 0 && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("CODE_%d", int(c))
}

// Error is an error of a backend.
type Error struct {
	Code Code
	// Op is what was being done: "compile transformer", "execute vae".
	Op string
	// Message is the backend's own text.
	Message string
	// Cause is the error behind it, such as a context's; may be nil.
	Cause error
}

// Errorf makes an Error.
func Errorf(code Code, op, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, Message: fmt.Sprintf(format, args...)}
}

// Error returns "op: CODE: message".
func (e *Error) Error() string {
	return e.Op + ": " + e.Code.String() + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// ContextError is the error of an operation that its context ended: Cancelled or DeadlineExceeded, with the context's own as its cause.
func ContextError(ctx context.Context, op string) *Error {
	code := Cancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = DeadlineExceeded
	}
	return &Error{Code: code, Op: op, Message: context.Cause(ctx).Error(), Cause: ctx.Err()}
}

// CodeOf returns the code of the first Error in err's chain: OK for nil, Unknown where there is no Error.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unknown
}
