package gobackend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"precast/backends"
	"precast/graph"
)

// magic opens a serialized executable; its number changes with the format. Then come the hexadecimal SHA-256 of the rest, a new line, and
// the graph's text.
const magic = "precast go executable 1\n"

func marshal(m *graph.Module) []byte {
	body := m.String()
	sum := sha256.Sum256([]byte(body))
	return []byte(magic + hex.EncodeToString(sum[:]) + "\n" + body)
}

func unmarshal(data []byte) (*graph.Module, error) {
	const op = "load an executable of the Go backend"
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return nil, backends.Errorf(backends.InvalidArgument, op, "found %q at the start, wanted %q", data[:min(len(data), len(magic))], magic)
	}
	sum, body, ok := bytes.Cut(rest, []byte("\n"))
	if want := sha256.Sum256(body); !ok || string(sum) != hex.EncodeToString(want[:]) {
		return nil, backends.Errorf(backends.DataLoss, op, "the checksum does not match: the bytes were changed or cut off")
	}
	m, err := graph.Parse("serialized executable", string(body))
	if err != nil {
		return nil, backends.Errorf(backends.DataLoss, op, "%v", err)
	}
	if err := graph.Verify(m); err != nil {
		return nil, backends.Errorf(backends.DataLoss, op, "%v", err)
	}
	return m, nil
}

// fingerprint identifies a module by its content.
func fingerprint(m *graph.Module) string {
	h := graph.Hash(m)
	return hex.EncodeToString(h[:])
}
