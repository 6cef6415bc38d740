package pipelines

import (
	"context"
	"fmt"
	"maps"
	"slices"

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

// decodeVideoTiles decodes latent frames, each [1, C, 1, h, w] in dtype, tile by tile: of one tile all frames, the pasts going from one to the next. It
// returns the chunks of frames, [3, F, H, W] each, clamped.
func decodeVideoTiles(ctx context.Context, ex Executor, c autoencoderklwan.Config, dtype graph.DType, tiles *autoencoderkl.Tiles, latents [][]byte) ([][]float32, error) {
	chunks := videoChunks(len(latents))
	var parts [][]float32 // of each tile the chunks' planes, one chunk after another
	var planes []int      // of each chunk
	for k, t := range tiles.Tiles {
		planes = planes[:0]
		var all []float32
		pasts := tensors{}
		for f, data := range latents {
			if err := ctx.Err(); err != nil {
				pasts.free()
				return nil, err
			}
			q := videoDecoder(c, dtype, t.Height, t.Width, chunks[min(f, len(chunks)-1)], true)
			z, err := ex.Put(q.Inputs[0].Shape, tiles.Cut(k, data, dtype.Size()))
			if err != nil {
				pasts.free()
				return nil, err
			}
			in := tensors{"latents": z}
			maps.Copy(in, pasts)
			out, err := ex.Run(ctx, q, in)
			in.free()
			if err != nil {
				return nil, err
			}
			sample := out["sample"]
			delete(out, "sample")
			pasts = out
			v, err := readFloats(ctx, sample, "vae", "the decoded frames' values")
			planes = append(planes, sample.Shape().Dim(1)*sample.Shape().Dim(2))
			sample.Free()
			if err != nil {
				pasts.free()
				return nil, err
			}
			all = append(all, v...)
		}
		pasts.free()
		parts = append(parts, all)
	}
	total := 0
	for _, n := range planes {
		total += n
	}
	joined := tiles.Join(parts, total)
	h, w := tiles.OutSize()
	var out [][]float32
	for _, n := range planes {
		v := autoencoderklwan.Unpatchify(joined[:n*h*w], c.PatchSize, n/c.OutChannels, h, w)
		joined = joined[n*h*w:]
		for i, x := range v {
			v[i] = min(max(x, -1), 1)
		}
		out = append(out, slices.Clip(v))
	}
	return out, nil
}
