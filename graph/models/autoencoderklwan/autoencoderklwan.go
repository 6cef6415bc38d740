// Package autoencoderklwan is AutoencoderKLWan, the video autoencoder of Wan 2.1 and 2.2 (diffusers, models/autoencoders/autoencoder_kl_wan.py;
// https://arxiv.org/abs/2503.20314), and AutoencoderKLQwenImage (autoencoder_kl_qwenimage.py), which is the same network on one frame.
//
// Every convolution over time is causal, so a video is decoded a latent frame at a time and encoded in the frames of one: a program for the
// first chunk and a program for each later one. What a convolution needs of the frames before its chunk, its past, is a result of one call and an
// argument of the next. So the memory does not grow with the video, and any number of frames runs the same executables. One program over
// all frames would give the same values; its memory and its compile would grow with the video.
//
// Scopes are diffusers' module paths and weights have its keys. Inside, activations are channels-last ([B, T, H, W, C]); the networks take
// and give diffusers' [B, C, T, H, W].
package autoencoderklwan

import (
	"fmt"
	"strconv"

	"github.com/gomlx/compute/shapes"
	ml "github.com/gomlx/gomlx/core/graph"

	"precast/graph"
	"precast/graph/nn"
	"precast/graph/trace"
)

// Chunk says which part of a video a program is for.
type Chunk int

const (
	// Only is a video of one frame, or a picture: no pasts.
	Only Chunk = iota
	// First is the first latent frame, which stands for one frame: pasts are results.
	First
	// Later is any other, which stands for cfg.TemporalFactor() frames: pasts are arguments and results.
	Later
)

func (k Chunk) String() string { return [...]string{"only chunk", "first chunk", "later chunk"}[k] }

// frames is the number of frames of a chunk outside.
func (k Chunk) frames(cfg *Config) int {
	if k == Later {
		return cfg.TemporalFactor()
	}
	return 1
}

// Sizes are the static sizes of one program.
type Sizes struct {
	Batch int
	// Height and Width are in latent pixels for the decoder, in pixels for the encoder.
	Height, Width int
	// DType is the dtype of the activations and weights.
	DType graph.DType
	Chunk Chunk
}

// NewDecoder is the network "vae.decoder", or "vae.decoder_later" for a Later chunk, that decodes one latent frame: "latents" [B, z_dim, 1, H, W] ->
// "sample" [B, channels, F, H*f, W*f], clamped to -1 to 1, where f is cfg.SpatialFactor() and F the number of frames of the chunk. The latents are
// unscaled: see Config.LatentsMean.
//
// Results after "sample", and arguments after "latents" in a Later chunk, are the pasts, in the same order and by the same names:
// [B, 2, H', W', C].
func NewDecoder(cfg Config, s Sizes) trace.Network {
	return decoderNetwork(cfg, s, func(x *ml.Node) *ml.Node { return ml.ClipScalar(unpatchify(x, cfg.PatchSize), -1, 1) })
}

// NewTileDecoder is NewDecoder for a tile of a picture: tiles are joined before the pixels of patches are put in their places and clamped, so
// that sample is [B, out_channels, F, H*f/p, W*f/p], p being cfg.PatchSize. Unpatchify and a clamp are the rest.
func NewTileDecoder(cfg Config, s Sizes) trace.Network {
	return decoderNetwork(cfg, s, func(x *ml.Node) *ml.Node { return x })
}

func decoderNetwork(cfg Config, s Sizes, finish func(x *ml.Node) *ml.Node) trace.Network {
	in := trace.Input{Name: "latents", Shape: shapes.Make(s.DType, s.Batch, cfg.ZDim, 1, s.Height, s.Width)}
	return network(cfg, s, "vae.decoder", in, []string{"sample"}, cfg.decoderPasts(s), func(m *model, x *ml.Node) []*ml.Node {
		z := nn.CausalConv3D(m.Ctx, "post_quant_conv", nn.ToNTHWC(x), nil, cfg.ZDim, [3]int{1, 1, 1})
		return []*ml.Node{nn.ToNCTHW(finish(m.decoder(z)))}
	})
}

// Unpatchify puts the pixels of patches in their places: v [C p^2, F, h, w] -> [C, F, h p, w p]. Of channel (c p + a) p + b, b is the row within the
// patch and a the column.
func Unpatchify(v []float32, p, frames, h, w int) []float32 {
	if p == 1 {
		return v
	}
	out := make([]float32, len(v))
	for i, x := range v {
		col, rest := i%w, i/w
		row, rest := rest%h, rest/h
		f, channel := rest%frames, rest/frames
		b, a, c := channel%p, channel/p%p, channel/(p*p)
		out[((c*frames+f)*h*p+row*p+b)*w*p+col*p+a] = x
	}
	return out
}

// NewEncoder is the network "vae.encoder", or "vae.encoder_later", that encodes the frames of one latent frame: "sample" [B, channels, F, H, W] in the
// range -1 to 1, F the number of frames of the chunk -> "mean" and "logvar" of the posterior, each [B, z_dim, 1, H/f, W/f], unscaled; logvar is
// clamped to -30 to 20. H and W are multiples of f, cfg.SpatialFactor(). Pasts are as in NewDecoder.
func NewEncoder(cfg Config, s Sizes) trace.Network {
	p := cfg.PatchSize
	in := trace.Input{Name: "sample", Shape: shapes.Make(s.DType, s.Batch, cfg.InChannels/(p*p), s.Chunk.frames(&cfg), s.Height, s.Width)}
	return network(cfg, s, "vae.encoder", in, []string{"mean", "logvar"}, cfg.encoderPasts(s), func(m *model, x *ml.Node) []*ml.Node {
		h := m.encoder(patchify(nn.ToNTHWC(x), p))
		h = nn.CausalConv3D(m.Ctx, "quant_conv", h, nil, 2*cfg.ZDim, [3]int{1, 1, 1})
		moments := ml.Split(nn.ToNCTHW(h), 1, 2)
		return []*ml.Node{moments[0], ml.ClipScalar(moments[1], -30, 20)}
	})
}

// network adds the pasts to a network of one input.
func network(cfg Config, s Sizes, name string, in trace.Input, outputs []string, pasts []trace.Input, build func(m *model, x *ml.Node) []*ml.Node) trace.Network {
	n := trace.Network{Name: name, Class: cfg.Class, DType: s.DType, Inputs: []trace.Input{in}, Outputs: outputs}
	switch s.Chunk {
	case Only:
		pasts = nil
	case Later:
		n.Name += "_later"
		n.Inputs = append(n.Inputs, pasts...)
	}
	for _, p := range pasts {
		n.Outputs = append(n.Outputs, p.Name)
	}
	n.Build = func(c *trace.Ctx, given map[string]*ml.Node) []*ml.Node {
		m := &model{Config: cfg, Ctx: c, chunk: s.Chunk, past: given, next: map[string]*ml.Node{}}
		results := build(m, given[in.Name])
		for _, p := range pasts {
			results = append(results, m.next[p.Name])
		}
		return results
	}
	return n
}

// model builds one network in one Ctx.
type model struct {
	Config
	*trace.Ctx
	chunk Chunk
	// past and next have the pasts before and after the chunk, by the path of the convolution.
	past, next map[string]*ml.Node
}

// keep takes the past of the convolution name at a point where x passes, and leaves the last n frames of both together as the next chunk's. Before
// the first chunk there are zeros, given as nil.
func (m *model) keep(name string, x *ml.Node, n int) (past *ml.Node) {
	if m.chunk == Only {
		return nil
	}
	path := m.Path() + "." + name
	frames := x.Shape().Dim(1)
	all := x
	if frames < n {
		past := m.past[path]
		if m.chunk == First {
			past = zeroFrames(x, n)
		}
		all = ml.Concatenate([]*ml.Node{past, x}, 1)
	}
	m.next[path] = lastFrames(all, n)
	if m.chunk == First {
		return nil
	}
	return m.past[path]
}

// causal is a convolution that sees two frames before its own.
func (m *model) causal(name string, x *ml.Node, out int) *ml.Node {
	return nn.CausalConv3D(m.Ctx, name, x, m.keep(name, x, 2), out, [3]int{3, 3, 3})
}

func zeroFrames(like *ml.Node, n int) *ml.Node {
	shape := like.Shape().Clone()
	shape.Dimensions[1] = n
	return ml.Zeros(like.Graph(), shape)
}

func lastFrames(x *ml.Node, n int) *ml.Node {
	return ml.SliceAxis(x, 1, ml.AxisRangeToEnd(x.Shape().Dim(1)-n))
}

func (m *model) encoder(x *ml.Node) *ml.Node {
	defer m.Enter("encoder")()
	x = m.causal("conv_in", x, m.BaseDim)
	index := 0 // of the flat list of layers that the plain form has
	for i, shape := range m.encoderBlocks() {
		if m.IsResidual {
			x = m.residualDownBlock(i, x, shape)
			continue
		}
		for range m.NumResBlocks {
			x = m.residualBlock(fmt.Sprintf("down_blocks.%d", index), x, shape.out)
			index++
		}
		if shape.spatial {
			x = m.downsample(fmt.Sprintf("down_blocks.%d", index), x, shape.temporal)
			index++
		}
	}
	return m.convOut(m.midBlock(x), 2*m.ZDim)
}

func (m *model) decoder(z *ml.Node) *ml.Node {
	defer m.Enter("decoder")()
	blocks := m.decoderBlocks()
	x := m.midBlock(m.causal("conv_in", z, blocks[0].in))
	for i := range blocks {
		x = m.upBlock(i, x)
	}
	return m.convOut(x, m.OutChannels)
}

// convOut is norm_out, SiLU and conv_out.
func (m *model) convOut(x *ml.Node, out int) *ml.Node {
	return m.causal("conv_out", nn.SiLU(nn.RMSNormChannels(m.Ctx, "norm_out", x, 3)), out)
}

// residualDownBlock is WanResidualDownBlock.
func (m *model) residualDownBlock(i int, x *ml.Node, shape blockShape) *ml.Node {
	defer m.Enter(fmt.Sprintf("down_blocks.%d", i))()
	shortcut := avgDown3D(x, shape)
	for j := range m.NumResBlocks {
		x = m.residualBlock(fmt.Sprintf("resnets.%d", j), x, shape.out)
	}
	if shape.spatial {
		x = m.downsample("downsampler", x, shape.temporal)
	}
	return ml.Add(x, shortcut)
}

// upBlock is WanUpBlock, or WanResidualUpBlock in the residual form; it has one layer more than the encoder's block.
func (m *model) upBlock(i int, x *ml.Node) *ml.Node {
	defer m.Enter(fmt.Sprintf("up_blocks.%d", i))()
	shape, before := m.decoderBlocks()[i], x
	for j := range m.NumResBlocks + 1 {
		x = m.residualBlock("resnets."+strconv.Itoa(j), x, shape.out)
	}
	switch {
	case !shape.spatial:
		return x
	case m.IsResidual:
		x = m.upsample("upsampler", x, shape.out, shape.temporal)
		return ml.Add(x, m.dupUp3D(before, shape))
	default:
		return m.upsample("upsamplers.0", x, shape.out/2, shape.temporal)
	}
}

// midBlock is WanMidBlock with one attention.
func (m *model) midBlock(x *ml.Node) *ml.Node {
	defer m.Enter("mid_block")()
	channels := x.Shape().Dim(-1)
	x = m.residualBlock("resnets.0", x, channels)
	x = m.attention("attentions.0", x)
	return m.residualBlock("resnets.1", x, channels)
}

// residualBlock is WanResidualBlock: x [B, T, H, W, in] -> [B, T, H, W, out].
func (m *model) residualBlock(name string, x *ml.Node, out int) *ml.Node {
	defer m.Enter(name)()
	h := m.causal("conv1", nn.SiLU(nn.RMSNormChannels(m.Ctx, "norm1", x, 3)), out)
	h = m.causal("conv2", nn.SiLU(nn.RMSNormChannels(m.Ctx, "norm2", h, 3)), out)
	if x.Shape().Dim(-1) != out {
		x = nn.CausalConv3D(m.Ctx, "conv_shortcut", x, nil, out, [3]int{1, 1, 1})
	}
	return ml.Add(h, x)
}

// attention is WanAttentionBlock: one head over the positions of each frame, beside a residual.
func (m *model) attention(name string, x *ml.Node) *ml.Node {
	defer m.Enter(name)()
	return ml.Add(x, nn.PerFrame(x, func(x *ml.Node) *ml.Node {
		d := x.Shape().Dimensions
		h := nn.Conv2D(m.Ctx, "to_qkv", nn.RMSNormChannels(m.Ctx, "norm", x, 2), 3*d[3], nn.Same(1))
		qkv := ml.Split(ml.Reshape(h, d[0], d[1]*d[2], 1, 3*d[3]), 3, 3)
		h = nn.MergeHeads(nn.Attention(qkv[0], qkv[1], qkv[2], nn.AttentionConfig{}))
		return nn.Conv2D(m.Ctx, "proj", ml.Reshape(h, d...), d[3], nn.Same(1))
	}))
}

// upsample is WanResample in its two forms that upsample: frames are doubled, but for the first one, which has none before it to be
// told apart from; then height and width.
func (m *model) upsample(name string, x *ml.Node, out int, temporal bool) *ml.Node {
	defer m.Enter(name)()
	if temporal {
		x = m.upsampleTime(x)
	}
	return nn.PerFrame(x, func(x *ml.Node) *ml.Node {
		return nn.Conv2D(m.Ctx, "resample.1", nn.Nearest2D(x), out, nn.Same(3))
	})
}

// upsampleTime makes two frames of each: time_conv [B, T, H, W, C] -> [B, T, H, W, 2C], whose halves are an earlier and a later frame. The
// first chunk passes as it is, and does not count as a past.
func (m *model) upsampleTime(x *ml.Node) *ml.Node {
	const name = "time_conv"
	if m.chunk == First {
		m.next[m.Path()+"."+name] = zeroFrames(x, 2)
	}
	if m.chunk != Later {
		return x
	}
	d := x.Shape().Dimensions
	x = nn.CausalConv3D(m.Ctx, name, x, m.keep(name, x, 2), 2*d[4], [3]int{3, 1, 1})
	x = ml.TransposeAllAxes(ml.Reshape(x, d[0], d[1], d[2], d[3], 2, d[4]), 0, 1, 4, 2, 3, 5)
	return ml.Reshape(x, d[0], 2*d[1], d[2], d[3], d[4])
}

// downsample is WanResample in its two forms that downsample: height and width are halved, with zeros below and at the right only; then
// frames, but for the first chunk, each frame of the result from two and the one before them.
func (m *model) downsample(name string, x *ml.Node, temporal bool) *ml.Node {
	defer m.Enter(name)()
	const conv = "time_conv"
	channels := x.Shape().Dim(-1)
	x = nn.PerFrame(x, func(x *ml.Node) *ml.Node {
		return nn.Conv2D(m.Ctx, "resample.1", x, channels, nn.Window{Size: 3, Stride: 2, Padding: [2][2]int{{0, 1}, {0, 1}}})
	})
	if !temporal {
		return x
	}
	past := m.keep(conv, x, 1)
	if m.chunk != Later {
		return x
	}
	x = ml.Concatenate([]*ml.Node{past, x}, 1)
	return nn.Conv3D(m.Ctx, conv, x, channels, nn.Window3D{Size: [3]int{3, 1, 1}, Stride: [3]int{2, 1, 1}})
}

// avgDown3D is AvgDown3D, the shortcut of a residual block of the encoder: the values that one of the coarser video stands for become
// channels, by channel, frame, row and column, and groups of them are averaged to shape.out channels. Zeros come before an odd first frame.
func avgDown3D(x *ml.Node, shape blockShape) *ml.Node {
	t, s := resampling(shape)
	if missing := (t - x.Shape().Dim(1)%t) % t; missing > 0 {
		x = ml.Concatenate([]*ml.Node{zeroFrames(x, missing), x}, 1)
	}
	d := x.Shape().Dimensions
	x = ml.Reshape(x, d[0], d[1]/t, t, d[2]/s, s, d[3]/s, s, d[4])
	x = ml.TransposeAllAxes(x, 0, 1, 3, 5, 7, 2, 4, 6)
	group := d[4] * shape.factor() / shape.out
	x = ml.Reshape(x, d[0], d[1]/t, d[2]/s, d[3]/s, shape.out, group)
	return ml.MulScalar(ml.ReduceSum(x, -1), 1/float64(group))
}

// dupUp3D is DupUp3D, the shortcut of a residual block of the decoder: channels are repeated, and become the frames, rows and
// columns that the coarser value stands for. In the first chunk only the last of its frames is there.
func (m *model) dupUp3D(x *ml.Node, shape blockShape) *ml.Node {
	t, s := resampling(shape)
	d := x.Shape().Dimensions
	repeats := shape.out * shape.factor() / shape.in
	x = ml.BroadcastToDims(ml.InsertAxes(x, -1), append(append([]int{}, d...), repeats)...)
	x = ml.Reshape(x, d[0], d[1], d[2], d[3], shape.out, t, s, s)
	x = ml.TransposeAllAxes(x, 0, 1, 5, 2, 6, 3, 7, 4)
	x = ml.Reshape(x, d[0], d[1]*t, d[2]*s, d[3]*s, shape.out)
	if m.chunk != Later {
		x = lastFrames(x, d[1]*t-(t-1))
	}
	return x
}

// resampling is by how much a block resamples frames, and height and width.
func resampling(shape blockShape) (t, s int) {
	t, s = 1, 1
	if shape.temporal {
		t = 2
	}
	if shape.spatial {
		s = 2
	}
	return t, s
}

// patchify turns squares of p x p pixels into channels, by channel, column and row: x [B, T, H, W, C] -> [B, T, H/p, W/p, C p p].
func patchify(x *ml.Node, p int) *ml.Node {
	if p == 1 {
		return x
	}
	d := x.Shape().Dimensions
	x = ml.Reshape(x, d[0], d[1], d[2]/p, p, d[3]/p, p, d[4])
	return ml.Reshape(ml.TransposeAllAxes(x, 0, 1, 2, 4, 6, 5, 3), d[0], d[1], d[2]/p, d[3]/p, d[4]*p*p)
}

// unpatchify is the inverse of patchify.
func unpatchify(x *ml.Node, p int) *ml.Node {
	if p == 1 {
		return x
	}
	d := x.Shape().Dimensions
	c := d[4] / (p * p)
	x = ml.Reshape(x, d[0], d[1], d[2], d[3], c, p, p)
	return ml.Reshape(ml.TransposeAllAxes(x, 0, 1, 2, 6, 3, 5, 4), d[0], d[1], d[2]*p, d[3]*p, c)
}
