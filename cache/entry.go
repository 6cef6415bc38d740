package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"
	"unsafe"
)

// An entry file is
//
//	8 bytes   magic
//	4 bytes   format version, little-endian
//	4 bytes   length of the header, little-endian
//	n bytes   header, JSON
//	32 bytes  SHA-256 of everything before it
//	m bytes   payload, to the end of the file
//
// The header holds the payload's length and SHA-256, so that every byte of the file is covered by a checksum: a changed bit in an executable can
// load without an error and end the process later.
const (
	entryMagic = "\x8fprecast"
	// entryVersion goes up with every change of the format. An entry of another version is a miss, not a fault.
	entryVersion = 1
	preamble     = len(entryMagic) + 4 + 4
	// maxHeader bounds what is read before a checksum is known to hold.
	maxHeader = 1 << 20
	// payloadAlign is the alignment of the buffer that Get returns: a cache line, and what XLA's CPU client wants of memory that it is given.
	payloadAlign = 64
	// readChunk is how much of a payload is read before it is hashed: small enough to be hashed while it is in the processor's cache.
	readChunk = 256 << 10
)

// errStale says that an entry was written in another format version.
var errStale = errors.New("written by a precast with another entry format")

// badEntryError says why an entry can't be trusted.
type badEntryError struct{ reason string }

func (e *badEntryError) Error() string { return e.reason }

func badEntry(format string, args ...any) error {
	return &badEntryError{fmt.Sprintf(format, args...)}
}

// header is what an entry says about itself.
type header struct {
	Kind    Kind      `json:"kind"`
	Key     Key       `json:"key"`
	Payload int64     `json:"payload"` // bytes
	SHA256  string    `json:"sha256"`  // of the payload, hexadecimal
	Created time.Time `json:"created"`
}

// encodeHead makes everything of an entry that comes before its payload.
func encodeHead(kind Kind, key Key, payload []byte, created time.Time) ([]byte, error) {
	return encodeHeadOf(kind, key, int64(len(payload)), sha256.Sum256(payload), created, 1)
}

// encodeHeadOf is encodeHead for a payload of that length and checksum. The head is filled up with spaces, which are JSON, to a multiple of align bytes.
func encodeHeadOf(kind Kind, key Key, payload int64, sum [sha256.Size]byte, created time.Time, align int) ([]byte, error) {
	for _, f := range key.Fields {
		// JSON would replace the bytes, and the entry would never be found equal to its key again.
		if !utf8.ValidString(f.Name) || !utf8.ValidString(f.Value) {
			return nil, fmt.Errorf("field %q of the cache key is not UTF-8: %q", f.Name, f.Value)
		}
	}
	text, err := json.Marshal(header{kind, key, payload, hex.EncodeToString(sum[:]), created.UTC().Truncate(time.Second)})
	if err != nil {
		return nil, err
	}
	if rest := (preamble + len(text) + sha256.Size) % align; rest > 0 {
		text = append(text, bytes.Repeat([]byte{' '}, align-rest)...)
	}
	if len(text) > maxHeader {
		return nil, fmt.Errorf("the cache key is too long: its header has %d bytes, the limit is %d", len(text), maxHeader)
	}
	out := make([]byte, 0, preamble+len(text)+sha256.Size)
	out = append(out, entryMagic...)
	out = binary.LittleEndian.AppendUint32(out, entryVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(text)))
	out = append(out, text...)
	check := sha256.Sum256(out)
	return append(out, check[:]...), nil
}

// readHead reads and checks an entry of size bytes up to its payload, at which r stands afterwards. The error is errStale, a *badEntryError, or
// what r returned.
func readHead(r io.Reader, size int64) (*header, error) {
	if size == 0 {
		return nil, badEntry("the file is empty")
	}
	fixed := make([]byte, preamble)
	if err := readFull(r, fixed, "the start"); err != nil {
		return nil, err
	}
	if found := fixed[:len(entryMagic)]; string(found) != entryMagic {
		return nil, badEntry("it starts with %q, wanted %q", found, entryMagic)
	}
	version := binary.LittleEndian.Uint32(fixed[len(entryMagic):])
	if version != entryVersion {
		return nil, fmt.Errorf("%w: version %d, this one reads %d", errStale, version, entryVersion)
	}
	n := int64(binary.LittleEndian.Uint32(fixed[len(entryMagic)+4:]))
	offset := int64(preamble) + n + sha256.Size
	if n > maxHeader || offset > size {
		return nil, badEntry("its header has %d bytes in a file of %d bytes, the limit is %d", n, size, maxHeader)
	}
	rest := make([]byte, n+sha256.Size)
	if err := readFull(r, rest, "the header"); err != nil {
		return nil, err
	}
	text, check := rest[:n], rest[n:]
	sum := sha256.New()
	sum.Write(fixed)
	sum.Write(text)
	if found := sum.Sum(nil); !bytes.Equal(found, check) {
		return nil, badEntry("the header's SHA-256 is %x, wanted %x", found, check)
	}
	h := &header{}
	if err := json.Unmarshal(text, h); err != nil {
		return nil, badEntry("the header is not what this precast writes: %v", err)
	}
	if h.Payload != size-offset {
		return nil, badEntry("the payload has %d bytes, wanted %d", size-offset, h.Payload)
	}
	return h, nil
}

// is checks that the entry is the wanted one.
func (h *header) is(kind Kind, key Key) error {
	if h.Kind != kind {
		return badEntry("it is of kind %q, wanted %q", h.Kind, kind)
	}
	if !slices.Equal(h.Key.Fields, key.Fields) {
		return badEntry("it has the key %s, wanted %s", h.Key.Digest(), key.Digest())
	}
	return nil
}

// readPayload reads and checks the payload, in a buffer aligned to payloadAlign bytes.
func (h *header) readPayload(r io.Reader) ([]byte, error) {
	data := aligned(int(h.Payload))
	sum := sha256.New()
	for rest := data; len(rest) > 0; {
		chunk := rest[:min(len(rest), readChunk)]
		if err := readFull(r, chunk, "the payload"); err != nil {
			return nil, err
		}
		sum.Write(chunk)
		rest = rest[len(chunk):]
	}
	return data, h.checkSum(sum.Sum(nil))
}

// checkPayload is readPayload for a caller that doesn't want the bytes.
func (h *header) checkPayload(r io.Reader) error {
	sum := sha256.New()
	n, err := io.CopyBuffer(sum, io.LimitReader(r, h.Payload), make([]byte, readChunk))
	if err != nil {
		return err
	}
	if n != h.Payload {
		return badEntry("the payload ends after %d bytes, wanted %d", n, h.Payload)
	}
	return h.checkSum(sum.Sum(nil))
}

func (h *header) checkSum(sum []byte) error {
	if found := hex.EncodeToString(sum); found != h.SHA256 {
		return badEntry("the payload's SHA-256 is %s, wanted %s", found, h.SHA256)
	}
	return nil
}

// readFull fills buf; a file that ends too soon is a bad entry, not an error of reading.
func readFull(r io.Reader, buf []byte, part string) error {
	n, err := io.ReadFull(r, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return badEntry("the file ends after %d of the %d bytes of %s", n, len(buf), part)
	}
	return err
}

// aligned makes a buffer of n bytes whose first has an address that is a multiple of payloadAlign.
func aligned(n int) []byte {
	buf := make([]byte, n+payloadAlign-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(buf))) % payloadAlign)
	return buf[skip : skip+n : skip+n]
}
