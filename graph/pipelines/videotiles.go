package pipelines

import (
	"context"
	"fmt"
	"maps"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/models/autoencoderkl"
	"precast/graph/models/autoencoderklwan"
)

// The tiles of AutoencoderKLWan and AutoencoderKLQwenImage in pixels: their sides, and how far they are apart (tile_sample_min_height and
// tile_sample_stride_height in diffusers, models/autoencoders/autoencoder_kl_wan.py; of the width, too).
const (
	videoTileSide   = 256
	videoTileStride = 192
)

// videoTiles is how latents of h x w are cut, nil where they are not.
func videoTiles(c autoencoderklwan.Config, h, w int, tiling bool) *autoencoderkl.Tiles {
	if !tiling {
		return nil
	}
	f, p := c.SpatialFactor(), c.PatchSize
	return autoencoderkl.NewTiles(h, w, videoTileSide/f, videoTileStride/f, videoTileSide/p, videoTileStride/p)
}

// unscaleVideo takes latents [B, C, T, h, w] to the scale of the autoencoder, in the dtype of the decoder.
func unscaleVideo(x *ml.Node, c autoencoderklwan.Config, dtype graph.DType) *ml.Node {
	return ml.ConvertDType(ml.Add(ml.Mul(x, perChannel(c.LatentsStd, x)), perChannel(c.LatentsMean, x)), dtype)
}

// checkVideoTiling refuses tiles that would not meet: diffusers rounds their sides and strides on their own.
func checkVideoTiling(c autoencoderklwan.Config, r *Request) error {
	if f := c.SpatialFactor(); r.VAETiling && (videoTileStride%f != 0 || videoTileSide%f != 0) {
		return fmt.Errorf("vae_tiling: tiles are %d pixels apart, and a latent pixel of this vae stands for %d; they do not fit together", videoTileStride, f)
	}
	return nil
}

// videoDecoder is the program for a chunk of a whole picture of h x w latent pixels, or of a tile of it.
func videoDecoder(c autoencoderklwan.Config, dtype graph.DType, h, w int, chunk autoencoderklwan.Chunk, tile bool) *Program {
	make, what := autoencoderklwan.NewDecoder, ""
	if tile {
		make, what = autoencoderklwan.NewTileDecoder, "tile "
	}
	n := make(c, autoencoderklwan.Sizes{Batch: 1, Height: h, Width: w, DType: dtype, Chunk: chunk})
	q := &Program{
		Network: n, Component: "vae", Stage: StageDecode,
		Spec: fmt.Sprintf("%s1x%dx%d, %s, %v", what, h, w, chunk, graph.DTypeName(dtype)),
	}
	if chunk == autoencoderklwan.Later {
		// The pasts are as large as the next chunk's, which take their place.
		q.Donate = n.Outputs[1:]
	}
	return q
}

// videoChunks are the chunks that a video of so many latent frames is decoded in: the first, and what all others are.
func videoChunks(frames int) []autoencoderklwan.Chunk {
	if frames == 1 {
		return []autoencoderklwan.Chunk{autoencoderklwan.Only}
	}
	return []autoencoderklwan.Chunk{autoencoderklwan.First, autoencoderklwan.Later}
}

// videoDecoders lists the programs that decode so many latent frames of h x w.
func videoDecoders(c autoencoderklwan.Config, dtype graph.DType, frames, h, w int, tiling bool) []*Program {
	sizes, tiles := [][2]int{{h, w}}, videoTiles(c, h, w, tiling)
	if tiles != nil {
		sizes = tiles.Sizes()
	}
	var out []*Program
	for _, s := range sizes {
		for _, chunk := range videoChunks(frames) {
			out = append(out, videoDecoder(c, dtype, s[0], s[1], chunk, tiles != nil))
		}
	}
	return out
}

// videoDecoding decodes the latent frames of a picture's whole area, or of a tile, in their order: the pasts go from one call to the next.
type videoDecoding struct {
	program func(chunk autoencoderklwan.Chunk) *Program
	chunks  []autoencoderklwan.Chunk
	f       int
	pasts   tensors
}

func newVideoDecoding(c autoencoderklwan.Config, dtype graph.DType, frames, h, w int, tile bool) *videoDecoding {
	return &videoDecoding{
		program: func(chunk autoencoderklwan.Chunk) *Program { return videoDecoder(c, dtype, h, w, chunk, tile) },
		chunks:  videoChunks(frames),
	}
}

// next decodes the next latent frame [1, C, 1, h, w], which it frees, to the frames of its chunk: [C', F, H, W].
func (d *videoDecoding) next(ctx context.Context, ex Executor, z Tensor) ([]float32, error) {
	in := tensors{"latents": z}
	maps.Copy(in, d.pasts)
	out, err := ex.Run(ctx, d.program(d.chunks[min(d.f, len(d.chunks)-1)]), in)
	in.free()
	d.pasts = nil
	if err != nil {
		return nil, err
	}
	sample := out["sample"]
	defer sample.Free()
	delete(out, "sample")
	d.pasts = out
	d.f++
	return readFloats(ctx, sample, "vae", "the decoded frames' values")
}

func (d *videoDecoding) free() { d.pasts.free() }

// decodeFrames decodes the latent frames of a video, each [1, C, 1, h, w] in dtype, whole or in tiles, and frees them. emit is given the frames of one
// after the other: [3, F, H, W], clamped.
func decodeFrames(ctx context.Context, ex Executor, c autoencoderklwan.Config, dtype graph.DType, tiling bool, latents []Tensor, emit func(v []float32)) error {
	h, w := latents[0].Shape().Dim(3), latents[0].Shape().Dim(4)
	tiles := videoTiles(c, h, w, tiling)
	if tiles != nil {
		return decodeTiles(ctx, ex, c, dtype, tiles, latents, emit)
	}
	d := newVideoDecoding(c, dtype, len(latents), h, w, false)
	defer d.free()
	for _, z := range latents {
		v, err := d.next(ctx, ex, z)
		if err != nil {
			return err
		}
		emit(v)
	}
	return nil
}

// decodeTiles is decodeFrames tile by tile: of one tile all frames.
func decodeTiles(ctx context.Context, ex Executor, c autoencoderklwan.Config, dtype graph.DType, tiles *autoencoderkl.Tiles, latents []Tensor, emit func(v []float32)) error {
	data := make([][]byte, len(latents))
	for f, z := range latents {
		var err error
		if data[f], err = z.Read(ctx); err != nil {
			return err
		}
		z.Free()
	}
	parts := make([][]float32, len(tiles.Tiles)) // of each tile the chunks' planes, one chunk after another
	planes := make([]int, len(latents))          // of each chunk
	tile := func(k int, t autoencoderkl.Tile) error {
		d := newVideoDecoding(c, dtype, len(latents), t.Height, t.Width, true)
		defer d.free()
		for f := range data {
			if err := ctx.Err(); err != nil {
				return err
			}
			z, err := ex.Put(shape(dtype, 1, c.ZDim, 1, t.Height, t.Width), tiles.Cut(k, data[f], dtype.Size()))
			if err != nil {
				return err
			}
			v, err := d.next(ctx, ex, z)
			if err != nil {
				return err
			}
			side := c.SpatialFactor() / c.PatchSize // before the pixels of patches are put in their places
			planes[f] = len(v) / (side * t.Height * side * t.Width)
			parts[k] = append(parts[k], v...)
		}
		return nil
	}
	total := 0
	for k, t := range tiles.Tiles {
		if err := tile(k, t); err != nil {
			return err
		}
	}
	for _, n := range planes {
		total += n
	}
	joined := tiles.Join(parts, total)
	h, w := tiles.OutSize()
	for _, n := range planes {
		v := autoencoderklwan.Unpatchify(joined[:n*h*w], c.PatchSize, n/c.OutChannels, h, w)
		joined = joined[n*h*w:]
		for i, x := range v {
			v[i] = min(max(x, -1), 1)
		}
		emit(v)
	}
	return nil
}
