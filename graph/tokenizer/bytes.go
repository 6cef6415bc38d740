package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Byte-level BPE writes each byte of a text as one printable character, so that a vocabulary is made of strings without spaces and
// control characters. Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on in order.
// Source: bytes_to_unicode in the code of GPT-2 (Radford et al. 2019).
var (
	byteRune [256]rune
	runeByte = map[rune]byte{}
)

func init() {
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		byteRune[b] = r
		runeByte[r] = byte(b)
	}
}

// appendBytesOf appends the bytes that a token's characters stand for. A token with other characters, which no byte-level model
// makes, stands for itself.
func appendBytesOf(dst []byte, token string) []byte {
	n := len(dst)
	for _, r := range token {
		b, ok := runeByte[r]
		if !ok {
			return append(dst[:n], token...)
		}
		dst = append(dst, b)
	}
	return dst
}

// lossyString makes a string of bytes that may be no UTF-8. Where a character breaks off, one U+FFFD stands for its beginning, and
// one for each byte that begins none (Unicode 15, section 3.9, "Substitution of Maximal Subparts").
func lossyString(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = brokenLength(b)
		}
		s.WriteRune(r)
		b = b[n:]
	}
	return s.String()
}

// brokenLength is the number of bytes at the start of b that could have begun a character, 1 when the first can't.
func brokenLength(b []byte) int {
	// A beginning that some bytes complete is not full yet for utf8.FullRune; one that nothing completes is.
	n := 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n+1]) {
		n++
	}
	if utf8.FullRune(b[:n]) {
		return 1
	}
	return n
}
