package autoencoderkl

import (
	"fmt"
	"slices"
)

// Tiling cuts pictures into overlapping tiles that the networks see one at a time, as AutoencoderKL does after enable_tiling (diffusers,
// models/autoencoders/autoencoder_kl.py, tiled_decode and _tiled_encode): memory then depends on the tile, not on the picture, and tiles
// of one size share a program. What it computes differs from the whole picture's: attention and norms see a tile only.
type Tiling struct {
	// Sample is the side of a tile in pixels (tile_sample_min_size), Latent in latent pixels (tile_latent_min_size).
	Sample, Latent int
}

// overlapParts is one over the part of a tile that overlaps with the next (tile_overlap_factor 0.25).
const overlapParts = 4

// Tiling is the tiling that enable_tiling turns on: a tile has the size that the model was trained at.
func (c *Config) Tiling() (Tiling, error) {
	f := c.ScaleFactor()
	t := Tiling{Sample: c.SampleSize[0], Latent: c.SampleSize[0] / f}
	switch {
	case c.SampleSize[0] != c.SampleSize[1]:
		return t, fmt.Errorf("vae_tiling: the tile has the vae's sample_size: found %v, wanted one number", c.SampleSize)
	case t.Sample != t.Latent*f || t.Latent%overlapParts != 0 || t.Latent == 0:
		// diffusers rounds the overlap in pixels and in latent pixels on its own; the tiles then do not meet, and its picture has another size.
		return t, fmt.Errorf("vae_tiling: the tile has the vae's sample_size: found %d, wanted a multiple of %d, so that a quarter of it is whole latent pixels", t.Sample, overlapParts*f)
	}
	return t, nil
}

// Tile is where a tile lies in the tensor that is cut: its first row and column and its size.
type Tile struct{ Y, X, Height, Width int }

// Tiles is one picture's cut.
type Tiles struct {
	// Tiles has the tiles row by row, Columns a row.
	Tiles   []Tile
	Columns int

	// height and width of the tensor that is cut, and of the joined one.
	height, width, outHeight, outWidth int
	// blend is how many rows or columns of a network's result are mixed with those of the tile before, limit how many of it are kept.
	blend, limit int
}

// Decode cuts latents of that size, in latent pixels. It is nil where one tile holds them all.
func (t Tiling) Decode(height, width int) *Tiles {
	return NewTiles(height, width, t.Latent, t.Latent-t.Latent/overlapParts, t.Sample, t.Sample-t.Sample/overlapParts)
}

// Encode cuts a picture of that size, in pixels. It is nil where one tile holds it.
func (t Tiling) Encode(height, width int) *Tiles {
	return NewTiles(height, width, t.Sample, t.Sample-t.Sample/overlapParts, t.Latent, t.Latent-t.Latent/overlapParts)
}

// NewTiles lays tiles of that side over a tensor, one every stride; those at the lower and right edge are what is left. What a network makes
// of a tile has sides of outSide, of which outStride are kept: outSide/side is outStride/stride. It is nil where one tile holds the tensor.
func NewTiles(height, width, side, stride, outSide, outStride int) *Tiles {
	if height <= side && width <= side {
		return nil
	}
	g := &Tiles{
		height: height, width: width, outHeight: height * outSide / side, outWidth: width * outSide / side,
		blend: outSide - outStride, limit: outStride,
	}
	for y := 0; y < height; y += stride {
		g.Columns = 0
		for x := 0; x < width; x += stride {
			g.Tiles = append(g.Tiles, Tile{y, x, min(side, height-y), min(side, width-x)})
			g.Columns++
		}
	}
	return g
}

// OutSize is the height and width of what Join makes.
func (g *Tiles) OutSize() (height, width int) { return g.outHeight, g.outWidth }

// Sizes lists the different heights and widths of tiles, nine at most: the last two of a row or column may be cut.
func (g *Tiles) Sizes() [][2]int {
	var out [][2]int
	for _, t := range g.Tiles {
		if s := [2]int{t.Height, t.Width}; !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Cut copies tile k from the planes of a tensor [C, H, W] with elements of size bytes.
func (g *Tiles) Cut(k int, data []byte, size int) []byte {
	t := g.Tiles[k]
	out := make([]byte, 0, len(data)/(g.height*g.width)*t.Height*t.Width)
	for plane := 0; plane < len(data); plane += g.height * g.width * size {
		for y := t.Y; y < t.Y+t.Height; y++ {
			at := plane + (y*g.width+t.X)*size
			out = append(out, data[at:at+t.Width*size]...)
		}
	}
	return out
}

// Join blends what the network made of each tile, [channels, h, w], into the whole picture's [channels, H, W]. It changes the tiles: each
// is mixed into the next after it has been mixed itself, as blend_v and blend_h do in place.
func (g *Tiles) Join(tiles [][]float32, channels int) []float32 {
	out := make([]float32, channels*g.outHeight*g.outWidth)
	f := func(k int) plane {
		// A tile's result has the tile's size in the scale of the joined picture.
		return plane{tiles[k], g.Tiles[k].Height * g.outHeight / g.height, g.Tiles[k].Width * g.outWidth / g.width}
	}
	for k := range g.Tiles {
		tile := f(k)
		row, column := k/g.Columns, k%g.Columns
		if row > 0 {
			blendRows(f(k-g.Columns), tile, g.blend, channels)
		}
		if column > 0 {
			blendColumns(f(k-1), tile, g.blend, channels)
		}
		for c := range channels {
			for y := range min(tile.height, g.limit) {
				n := min(tile.width, g.limit)
				at := (c*g.outHeight+row*g.limit+y)*g.outWidth + column*g.limit
				from := (c*tile.height + y) * tile.width
				copy(out[at:at+n], tile.v[from:from+n])
			}
		}
	}
	return out
}

// plane is a tensor [channels, height, width].
type plane struct {
	v             []float32
	height, width int
}

// blendRows mixes the last rows of a, the tile above, into the first of b (blend_v).
func blendRows(a, b plane, extent, channels int) {
	extent = min(extent, a.height, b.height)
	for c := range channels {
		for y := range extent {
			from := (c*a.height + a.height - extent + y) * a.width
			to := (c*b.height + y) * b.width
			for x := range b.width {
				b.v[to+x] = mix(a.v[from+x], b.v[to+x], y, extent)
			}
		}
	}
}

// blendColumns mixes the last columns of a, the tile to the left, into the first of b (blend_h).
func blendColumns(a, b plane, extent, channels int) {
	extent = min(extent, a.width, b.width)
	for row := range channels * b.height {
		from, to := row*a.width+a.width-extent, row*b.width
		for x := range extent {
			b.v[to+x] = mix(a.v[from+x], b.v[to+x], x, extent)
		}
	}
}

// mix goes from a to b over extent steps.
func mix(a, b float32, step, extent int) float32 {
	w := float64(step) / float64(extent)
	return a*float32(1-w) + b*float32(w)
}
