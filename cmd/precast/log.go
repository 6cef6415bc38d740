package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// logger writes notes and warnings to standard error: as lines for people, or as JSON.
func (c *cli) logger() *slog.Logger {
	level := slog.LevelInfo
	switch {
	case c.quiet:
		level = slog.LevelError
	case c.verbose:
		level = slog.LevelDebug
	}
	if c.json {
		return slog.New(slog.NewJSONHandler(c.err, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(&lineHandler{w: c.err, level: level, mu: &sync.Mutex{}})
}

// lineHandler prints "precast: warning: message (key value, key value)".
type lineHandler struct {
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
	mu    *sync.Mutex
}

func (h *lineHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	var parts []string
	add := func(a slog.Attr) bool {
		if v := a.Value.Resolve(); v.Kind() == slog.KindFloat64 {
			parts = append(parts, fmt.Sprintf("%s %.3g", a.Key, v.Float64()))
		} else {
			parts = append(parts, fmt.Sprintf("%s %v", a.Key, v))
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	line := "precast: "
	if r.Level >= slog.LevelWarn {
		line += strings.ToLower(strings.Replace(r.Level.String(), "WARN", "warning", 1)) + ": "
	}
	line += r.Message
	if len(parts) > 0 {
		line += " (" + strings.Join(parts, ", ") + ")"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := fmt.Fprintln(h.w, line)
	return err
}

func (h *lineHandler) WithAttrs(a []slog.Attr) slog.Handler {
	n := *h
	n.attrs = append(append([]slog.Attr(nil), h.attrs...), a...)
	return &n
}

func (h *lineHandler) WithGroup(string) slog.Handler { return h }
