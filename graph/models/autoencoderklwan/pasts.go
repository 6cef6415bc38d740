package autoencoderklwan

import (
	"fmt"

	"github.com/gomlx/compute/shapes"

	"precast/graph/trace"
)

// pasts lists the pasts of a network while it walks the network's layers, in their order.
type pasts struct {
	s             Sizes
	height, width int
	list          []trace.Input
}

// add is a convolution that keeps that many frames of its input.
func (p *pasts) add(path string, frames, channels int) {
	p.list = append(p.list, trace.Input{Name: path, Shape: shapes.Make(p.s.DType, p.s.Batch, frames, p.height, p.width, channels)})
}

func (p *pasts) residualBlock(path string, in, out int) {
	p.add(path+".conv1", 2, in)
	p.add(path+".conv2", 2, out)
}

func (p *pasts) midBlock(path string, channels int) {
	p.residualBlock(path+".resnets.0", channels, channels)
	p.residualBlock(path+".resnets.1", channels, channels)
}

// decoderPasts are the decoder's, for sizes in latent pixels.
func (c *Config) decoderPasts(s Sizes) []trace.Input {
	p := &pasts{s: s, height: s.Height, width: s.Width}
	blocks := c.decoderBlocks()
	p.add("decoder.conv_in", 2, c.ZDim)
	p.midBlock("decoder.mid_block", blocks[0].in)
	channels := blocks[0].in
	for i, b := range blocks {
		path := fmt.Sprintf("decoder.up_blocks.%d", i)
		for j := range c.NumResBlocks + 1 {
			p.residualBlock(fmt.Sprintf("%s.resnets.%d", path, j), channels, b.out)
			channels = b.out
		}
		if b.temporal {
			sampler := ".upsamplers.0"
			if c.IsResidual {
				sampler = ".upsampler"
			}
			p.add(path+sampler+".time_conv", 2, channels)
		}
		if b.spatial {
			p.height, p.width = 2*p.height, 2*p.width
			if !c.IsResidual {
				channels /= 2
			}
		}
	}
	p.add("decoder.conv_out", 2, channels)
	return p.list
}

// encoderPasts are the encoder's, for sizes in pixels.
func (c *Config) encoderPasts(s Sizes) []trace.Input {
	p := &pasts{s: s, height: s.Height / c.PatchSize, width: s.Width / c.PatchSize}
	p.add("encoder.conv_in", 2, c.InChannels)
	channels, index := c.BaseDim, 0
	for i, b := range c.encoderBlocks() {
		layer := func(plain, residual string) string {
			if c.IsResidual {
				return fmt.Sprintf("encoder.down_blocks.%d.%s", i, residual)
			}
			index++
			return plain + fmt.Sprint(index-1)
		}
		for j := range c.NumResBlocks {
			p.residualBlock(layer("encoder.down_blocks.", fmt.Sprintf("resnets.%d", j)), channels, b.out)
			channels = b.out
		}
		if b.spatial {
			path := layer("encoder.down_blocks.", "downsampler")
			p.height, p.width = p.height/2, p.width/2
			if b.temporal {
				p.add(path+".time_conv", 1, channels)
			}
		}
	}
	p.midBlock("encoder.mid_block", channels)
	p.add("encoder.conv_out", 2, channels)
	return p.list
}
