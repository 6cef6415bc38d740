package precast

import (
	"math/bits"
	"slices"

	"precast/graph/pipelines"
)

// encodeVP8L is a picture as a lossless WebP bitstream (RFC 9649, section 3): green subtracted from red and blue, each pixel predicted from its
// neighbours by the best of a few rules for each tile, repeats found, and prefix codes of one group.
//
// It is here because no Go library would do: nativewebp v0.9.3 panics on some pictures (257x300 of noise), and gen2brain/webp v0.5.5 loads
// whatever libwebp the system has into every process that imports it.
func encodeVP8L(img pipelines.Image) []byte {
	w := &bitWriter{}
	w.bits(0x2f, 8)
	w.bits(uint64(img.Width-1), 14)
	w.bits(uint64(img.Height-1), 14)
	w.bits(0, 1+3) // no alpha, version 0
	pixels := make([]pixel, img.Width*img.Height)
	for i := range pixels {
		r, g, b := img.RGB[3*i], img.RGB[3*i+1], img.RGB[3*i+2]
		pixels[i] = pixel{g, r - g, b - g}
	}
	w.bits(1|subtractGreen<<1, 3)
	w.bits(1|predictor<<1, 3)
	w.bits(tileBits-2, 3)
	tiles, columns := predict(pixels, img.Width, img.Height)
	w.image(tiles, columns, false)
	w.bits(0, 1) // no more transforms
	w.image(pixels, img.Width, true)
	return w.flush()
}

// pixel holds green, red and blue, the order in which the bitstream has them; alpha is 255 everywhere, which leaves nothing after prediction.
type pixel [3]byte

// The kinds of transforms in use, and the side of the tiles that share a rule of prediction, as a power of two.
const (
	predictor     = 0
	subtractGreen = 2
	tileBits      = 5
)

// The rules of prediction in use, by their numbers in section 4.1: left, top, the average of both, select, and left + top - top left.
var rules = []int{1, 2, 7, 11, 12}

func predicted(rule int, left, top, corner pixel) (p pixel) {
	switch rule {
	case 1:
		return left
	case 2:
		return top
	case 11:
		dl, dt := 0, 0 // how far the estimate left + top - corner is from left, and from top
		for c := range p {
			dl += distance(top[c], corner[c])
			dt += distance(left[c], corner[c])
		}
		if dl < dt {
			return left
		}
		return top
	}
	for c := range p {
		if rule == 7 {
			p[c] = byte((int(left[c]) + int(top[c])) / 2)
		} else {
			p[c] = byte(min(max(int(left[c])+int(top[c])-int(corner[c]), 0), 255))
		}
	}
	return p
}

func distance(a, b byte) int { return max(int(a), int(b)) - min(int(a), int(b)) }

// predict replaces pixels by what prediction leaves and returns the rule of each tile as a picture (the number is in its green) with its width.
func predict(pixels []pixel, width, height int) (tiles []pixel, columns int) {
	source := slices.Clone(pixels)
	const side = 1 << tileBits
	columns = (width + side - 1) / side
	rows := (height + side - 1) / side
	residual := func(rule, x, y int) pixel {
		i := y*width + x
		var p pixel
		switch {
		case i == 0: // black
		case y == 0:
			p = source[i-1]
		case x == 0:
			p = source[i-width]
		default:
			p = predicted(rule, source[i-1], source[i-width], source[i-width-1])
		}
		for c := range p {
			p[c] = source[i][c] - p[c]
		}
		return p
	}
	for ty := range rows {
		for tx := range columns {
			best, least := 0, -1
			x1, y1 := min((tx+1)*side, width), min((ty+1)*side, height)
			for _, rule := range rules {
				sum := 0
				// Every other row tells enough.
				for y := ty * side; y < y1; y += 2 {
					for x := tx * side; x < x1; x++ {
						for _, v := range residual(rule, x, y) {
							sum += min(int(v), 256-int(v))
						}
					}
				}
				if least < 0 || sum < least {
					best, least = rule, sum
				}
			}
			for y := ty * side; y < y1; y++ {
				for x := tx * side; x < x1; x++ {
					pixels[y*width+x] = residual(best, x, y)
				}
			}
			tiles = append(tiles, pixel{byte(best)})
		}
	}
	return tiles, columns
}

// token is a pixel, or where length is set a copy of so many pixels that begin code back (a distance code).
type token struct {
	pixel        pixel
	length, code int
}

// The least and most pixels that a copy takes.
const minCopy, maxCopy = 3, 4096

// tokens finds repeats: the same pixels just before, in the row above, or where the same three pixels were last.
func tokens(pixels []pixel, width int) []token {
	const hashBits = 15
	last := make([]int32, 1<<hashBits) // place + 1
	hash := func(i int) uint32 {
		h := uint32(0)
		for _, p := range pixels[i : i+minCopy] {
			for _, v := range p {
				h = (h ^ uint32(v)) * 0x01000193
			}
		}
		return (h * 0x9e3779b1) >> (32 - hashBits)
	}
	match := func(i, from int) int {
		n := 0
		for i+n < len(pixels) && n < maxCopy && pixels[i+n] == pixels[from+n] {
			n++
		}
		return n
	}
	var out []token
	for i := 0; i < len(pixels); {
		length, back := 0, 0
		try := func(distance int) {
			// Distances end at 2^20; the 120 short codes come before the plain ones.
			if distance > 0 && distance <= i && distance < 1<<20-120 {
				if n := match(i, i-distance); n > length {
					length, back = n, distance
				}
			}
		}
		hashed := i+minCopy <= len(pixels)
		if hashed {
			try(1)
			try(width)
			try(i + 1 - int(last[hash(i)]))
		}
		if length < minCopy {
			out = append(out, token{pixel: pixels[i]})
			length = 1
		} else {
			code := back + 120
			switch back {
			case width:
				code = 1
			case 1:
				code = 2
			}
			out = append(out, token{length: length, code: code})
		}
		for end := i + length; i < end; i++ {
			if i+minCopy <= len(pixels) {
				last[hash(i)] = int32(i + 1)
			}
		}
	}
	return out
}

// prefix splits a length or distance code, 1 or more, into its symbol and extra bits (section 5.2.2).
func prefix(v int) (symbol, extra, count int) {
	v--
	if v < 4 {
		return v, 0, 0
	}
	high := bits.Len(uint(v)) - 1
	count = high - 1
	return 2*high + v>>count&1, v & (1<<count - 1), count
}

// The alphabets: green with lengths, red, blue, alpha, distances.
var alphabets = [5]int{256 + 24, 256, 256, 256, 40}

// image writes an entropy-coded image; main says that it is the picture itself, not one of a transform.
func (w *bitWriter) image(pixels []pixel, width int, main bool) {
	w.bits(0, 1) // no colour cache
	if main {
		w.bits(0, 1) // one group of prefix codes
	}
	list := tokens(pixels, width)
	var counts [5][]int
	for i, n := range alphabets {
		counts[i] = make([]int, n)
	}
	for _, t := range list {
		if t.length > 0 {
			length, _, _ := prefix(t.length)
			back, _, _ := prefix(t.code)
			counts[0][256+length]++
			counts[4][back]++
			continue
		}
		for c, v := range t.pixel {
			counts[c][v]++
		}
		counts[3][0]++
	}
	var codes [5]prefixCode
	for i, c := range counts {
		codes[i] = w.prefixCode(c)
	}
	for _, t := range list {
		if t.length == 0 {
			for c, v := range t.pixel {
				w.symbol(codes[c], int(v))
			}
			w.symbol(codes[3], 0)
			continue
		}
		for i, v := range []int{t.length, t.code} {
			symbol, extra, count := prefix(v)
			if i == 0 {
				symbol += 256
			}
			w.symbol(codes[4*i], symbol)
			w.bits(uint64(extra), count)
		}
	}
}

// prefixCode has a canonical code's bits, already in the order in which they are written, and their numbers.
type prefixCode struct {
	bits    []uint64
	lengths []int
}

func (w *bitWriter) symbol(c prefixCode, s int) { w.bits(c.bits[s], c.lengths[s]) }

// prefixCode writes the code for symbols that occur so often (section 5.2.1).
func (w *bitWriter) prefixCode(counts []int) prefixCode {
	var used []int
	for s, n := range counts {
		if n > 0 {
			used = append(used, s)
		}
	}
	if len(used) == 0 {
		used = []int{0}
	}
	if last := used[len(used)-1]; len(used) <= 2 && last < 256 {
		w.bits(1, 1)
		w.bits(uint64(len(used)-1), 1)
		w.bits(1, 1) // the first has 8 bits
		lengths := make([]int, len(counts))
		for _, s := range used {
			w.bits(uint64(s), 8)
			lengths[s] = len(used) - 1 // one symbol takes no bits
		}
		return canonical(lengths)
	}
	w.bits(0, 1)
	lengths := codeLengths(counts, 15)
	// The lengths themselves are coded: 16 repeats the last, 17 and 18 are zeros.
	type item struct{ symbol, extra, count int }
	var items []item
	for i := 0; i < len(lengths); {
		n := 1
		for i+n < len(lengths) && lengths[i+n] == lengths[i] {
			n++
		}
		v := lengths[i]
		i += n
		if v > 0 {
			items = append(items, item{symbol: v})
			n--
		}
		for n > 0 {
			switch {
			case v == 0 && n >= 11:
				k := min(n, 138)
				items = append(items, item{18, k - 11, 7})
				n -= k
			case v == 0 && n >= 3:
				items = append(items, item{17, n - 3, 3})
				n = 0
			case v > 0 && n >= 3:
				k := min(n, 6)
				items = append(items, item{16, k - 3, 2})
				n -= k
			default:
				items = append(items, item{symbol: v})
				n--
			}
		}
	}
	order := []int{17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	second := make([]int, len(order))
	for _, it := range items {
		second[it.symbol]++
	}
	// Two symbols at least, so that each has a bit.
	if one := slices.IndexFunc(second, func(n int) bool { return n > 0 }); second[one] == len(items) {
		second[(one+1)%len(second)] = 1
	}
	code := canonical(codeLengths(second, 7))
	n := len(order)
	for n > 4 && code.lengths[order[n-1]] == 0 {
		n--
	}
	w.bits(uint64(n-4), 4)
	for _, s := range order[:n] {
		w.bits(uint64(code.lengths[s]), 3)
	}
	w.bits(0, 1) // all symbols have a length
	for _, it := range items {
		w.symbol(code, it.symbol)
		w.bits(uint64(it.extra), it.count)
	}
	return canonical(lengths)
}

// codeLengths are the lengths of a Huffman code for two or more symbols, none longer than most bits.
func codeLengths(counts []int, most int) []int {
	weights := slices.Clone(counts)
	for {
		lengths := huffman(weights)
		if slices.Max(lengths) <= most {
			return lengths
		}
		// Rare symbols count for more until the tree is flat enough.
		for s, n := range weights {
			if n > 0 {
				weights[s] = n/2 + 1
			}
		}
	}
}

func huffman(weights []int) []int {
	type node struct{ weight, left, right int }
	var nodes []node // leaves by weight first, then what joins two
	var symbols []int
	for s, n := range weights {
		if n > 0 {
			symbols = append(symbols, s)
		}
	}
	slices.SortStableFunc(symbols, func(a, b int) int { return weights[a] - weights[b] })
	for _, s := range symbols {
		nodes = append(nodes, node{weights[s], -1, -1})
	}
	// Joined nodes come in the order of their weights, so the lightest is the head of one of two queues.
	leaf, joined := 0, len(symbols)
	lightest := func() int {
		if leaf < len(symbols) && (joined >= len(nodes) || nodes[leaf].weight <= nodes[joined].weight) {
			leaf++
			return leaf - 1
		}
		joined++
		return joined - 1
	}
	for range len(symbols) - 1 {
		a, b := lightest(), lightest()
		nodes = append(nodes, node{nodes[a].weight + nodes[b].weight, a, b})
	}
	depth := make([]int, len(nodes))
	lengths := make([]int, len(weights))
	for i := len(nodes) - 1; i >= 0; i-- {
		if n := nodes[i]; n.left >= 0 {
			depth[n.left], depth[n.right] = depth[i]+1, depth[i]+1
		} else {
			lengths[symbols[i]] = depth[i]
		}
	}
	return lengths
}

// canonical gives codes of the lengths: by length, then by symbol. A code is written from its highest bit.
func canonical(lengths []int) prefixCode {
	c := prefixCode{make([]uint64, len(lengths)), lengths}
	next := uint64(0)
	for n := 1; n <= 15; n++ {
		for s, l := range lengths {
			if l == n {
				c.bits[s] = bits.Reverse64(next) >> (64 - n)
				next++
			}
		}
		next <<= 1
	}
	return c
}

// bitWriter packs bits from the lowest of each byte up.
type bitWriter struct {
	out   []byte
	held  uint64
	count int
}

func (w *bitWriter) bits(v uint64, n int) {
	w.held |= v << w.count
	for w.count += n; w.count >= 8; w.count -= 8 {
		w.out = append(w.out, byte(w.held))
		w.held >>= 8
	}
}

func (w *bitWriter) flush() []byte {
	if w.count > 0 {
		w.out = append(w.out, byte(w.held))
	}
	return w.out
}
