package pipelines

import (
	"context"
	"fmt"
	"math"

	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/models/autoencoderkl"
)

// autoencoder is the AutoencoderKL of a pipeline: its programs, and how pictures go through them, whole or in tiles, one at a time.
type autoencoder struct {
	autoencoderkl.Config
	// decodes and encodes are the dtypes of the two networks.
	decodes, encodes graph.DType
}

func newAutoencoder(cfg autoencoderkl.Config, o Options) autoencoder {
	return autoencoder{Config: cfg, decodes: o.DTypeFor("vae"), encodes: o.DTypeFor("vae")}
}

// check finds what a request asks for that this autoencoder can't do.
func (a autoencoder) check(r *Request) error {
	if !r.VAETiling {
		return nil
	}
	_, err := a.Tiling()
	return err
}

// decoderTiles is how latents of that size are cut, nil for not.
func (a autoencoder) decoderTiles(h, w int, tiling bool) (*autoencoderkl.Tiles, error) {
	if !tiling {
		return nil, nil
	}
	t, err := a.Tiling()
	if err != nil {
		return nil, err
	}
	return t.Decode(h, w), nil
}

func (a autoencoder) encoderTiles(height, width int, tiling bool) (*autoencoderkl.Tiles, error) {
	if !tiling {
		return nil, nil
	}
	t, err := a.Tiling()
	if err != nil {
		return nil, err
	}
	return t.Encode(height, width), nil
}

// decoder takes the latents of one picture or tile, in latent pixels.
func (a autoencoder) decoder(h, w int) *Program {
	return &Program{
		Network:   autoencoderkl.NewDecoder(a.Config, autoencoderkl.Sizes{Batch: 1, Height: h, Width: w, DType: a.decodes}),
		Component: "vae", Stage: StageDecode, Aliases: autoencoderkl.Aliases, Spec: fmt.Sprintf("1x%dx%d %v", h, w, graph.DTypeName(a.decodes)),
	}
}

// encoder takes one picture, or one tile whose moments are joined with others.
func (a autoencoder) encoder(height, width int, tile bool) *Program {
	make, what := autoencoderkl.NewEncoder, ""
	if tile {
		make, what = autoencoderkl.NewTileEncoder, " moments"
	}
	return &Program{
		Network:   make(a.Config, autoencoderkl.Sizes{Batch: 1, Height: height, Width: width, DType: a.encodes}),
		Component: "vae", Stage: StageDenoise, Aliases: autoencoderkl.Aliases, Spec: fmt.Sprintf("1x%dx%d %v%s", height, width, graph.DTypeName(a.encodes), what),
	}
}

// decoders lists the programs that decode latents of that size.
func (a autoencoder) decoders(h, w int, tiling bool) ([]*Program, error) {
	tiles, err := a.decoderTiles(h, w, tiling)
	if err != nil {
		return nil, err
	}
	if tiles == nil {
		return []*Program{a.decoder(h, w)}, nil
	}
	var out []*Program
	for _, size := range tiles.Sizes() {
		out = append(out, a.decoder(size[0], size[1]))
	}
	return out, nil
}

// encoders lists the programs that encode the picture that a request starts from; none without one.
func (a autoencoder) encoders(r *Request) ([]*Program, error) {
	if r.Image == nil {
		return nil, nil
	}
	tiles, err := a.encoderTiles(r.Height, r.Width, r.VAETiling)
	if err != nil {
		return nil, err
	}
	if tiles == nil {
		return []*Program{a.encoder(r.Height, r.Width, false)}, nil
	}
	var out []*Program
	for _, size := range tiles.Sizes() {
		out = append(out, a.encoder(size[0], size[1], true))
	}
	return out, nil
}

// unpack is the program between the denoiser and the decoder for latents [B, C, h, w].
func (a autoencoder) unpack(b, h, w int) *Program {
	return unpackProgram([]int{b, a.LatentChannels, h, w}, fmt.Sprintf("%dx%dx%d %v", b, h, w, graph.DTypeName(a.decodes)), func(x *ml.Node) *ml.Node {
		return unscale(x, a.Config, a.decodes)
	})
}

// unpack2x2 is unpack for latents that are packed in patches of 2x2: [B, h*w, 4C].
func (a autoencoder) unpack2x2(b, h, w int) *Program {
	return unpackProgram([]int{b, h * w, 4 * a.LatentChannels}, fmt.Sprintf("%dx%dx%d %v", b, 2*h, 2*w, graph.DTypeName(a.decodes)), func(x *ml.Node) *ml.Node {
		return unscale(spread2x2(x, h, w), a.Config, a.decodes)
	})
}

// decode unpacks latents, which it frees, and decodes one picture's after the other.
func (a autoencoder) decode(ctx context.Context, ex Executor, r *Request, unpack *Program, latents Tensor, s Sizes) ([]Image, error) {
	h, w := s.Height/a.ScaleFactor(), s.Width/a.ScaleFactor()
	tiles, err := a.decoderTiles(h, w, s.VAETiling)
	if err != nil {
		latents.Free()
		return nil, err
	}
	if tiles == nil {
		return decodeImages(ctx, ex, r, unpack, a.decoder(h, w), latents, s)
	}
	return decodeImagesWith(ctx, ex, r, unpack, latents, s, func(z Tensor) ([]float32, error) {
		data, err := z.Read(ctx)
		if err != nil {
			return nil, err
		}
		parts, err := runTiles(ctx, ex, tiles, data, a.decodes, a.LatentChannels, a.decoder, "the decoded picture's values")
		if err != nil {
			return nil, err
		}
		return tiles.Join(parts, a.OutChannels), nil
	})
}

// runTiles runs a network of one input and one output on every tile of a tensor [1, channels, H, W] in dtype.
func runTiles(ctx context.Context, ex Executor, tiles *autoencoderkl.Tiles, data []byte, dtype graph.DType, channels int, program func(h, w int) *Program, stage string) ([][]float32, error) {
	var parts [][]float32
	for k, t := range tiles.Tiles {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p := program(t.Height, t.Width)
		in, err := ex.Put(shape(dtype, 1, channels, t.Height, t.Width), tiles.Cut(k, data, dtype.Size()))
		if err != nil {
			return nil, err
		}
		out, err := ex.Run(ctx, p, map[string]Tensor{p.Inputs[0].Name: in})
		in.Free()
		if err != nil {
			return nil, err
		}
		v, err := readFloats(ctx, out[p.Outputs[0]], p.Component, stage)
		tensors(out).free()
		if err != nil {
			return nil, err
		}
		parts = append(parts, v)
	}
	return parts, nil
}

// posterior is the distribution that the encoder gives for a picture: independent normal values (models/autoencoders/vae.py,
// DiagonalGaussianDistribution).
type posterior struct{ mean, logvar []float32 }

// sample makes one sample a picture of standard normal noise; noise has a multiple of the posterior's values.
func (p *posterior) sample(noise []float32) []float32 {
	out := make([]float32, len(noise))
	for i, n := range noise {
		k := i % len(p.mean)
		out[i] = p.mean[k] + float32(math.Exp(0.5*float64(p.logvar[k])))*n
	}
	return out
}

// encode encodes the picture that a request starts from, resized to the request's height and width.
func (a autoencoder) encode(ctx context.Context, ex Executor, r *Request) (*posterior, error) {
	v := normalized(resize(*r.Image, r.Height, r.Width))
	tiles, err := a.encoderTiles(r.Height, r.Width, r.VAETiling)
	if err != nil {
		return nil, err
	}
	data, err := encodeFloats(a.encodes, v)
	if err != nil {
		return nil, err
	}
	const stage = "the picture's latents"
	if tiles != nil {
		tile := func(h, w int) *Program { return a.encoder(h, w, true) }
		parts, err := runTiles(ctx, ex, tiles, data, a.encodes, a.InChannels, tile, stage)
		if err != nil {
			return nil, err
		}
		p := &posterior{}
		p.mean, p.logvar = autoencoderkl.SplitMoments(tiles.Join(parts, 2*a.LatentChannels))
		return p, nil
	}
	in, err := ex.Put(shape(a.encodes, 1, a.InChannels, r.Height, r.Width), data)
	if err != nil {
		return nil, err
	}
	defer in.Free()
	out, err := ex.Run(ctx, a.encoder(r.Height, r.Width, false), map[string]Tensor{"sample": in})
	if err != nil {
		return nil, err
	}
	defer tensors(out).free()
	p := &posterior{}
	if p.mean, err = readFloats(ctx, out["mean"], "vae", stage); err != nil {
		return nil, err
	}
	p.logvar, err = readFloats(ctx, out["logvar"], "vae", stage)
	return p, err
}

// scale takes latents [B, C, h, w] of the autoencoder, with plane = h*w, to the denoiser's scale: the inverse of unscale.
func (a autoencoder) scale(v []float32, plane int) {
	factor := float32(a.ScalingFactor)
	if len(a.LatentsMean) == 0 || len(a.LatentsStd) == 0 {
		for i, x := range v {
			v[i] = (x - float32(a.ShiftFactor)) * factor
		}
		return
	}
	for i, x := range v {
		c := i / plane % a.LatentChannels
		v[i] = (x - float32(a.LatentsMean[c])) * factor / float32(a.LatentsStd[c])
	}
}
