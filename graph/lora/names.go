package lora

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"precast/graph/checkpoint"
)

// model is the checkpoint's side: the layers that a LoRA can change.
type model struct {
	class    string
	denoiser string // "unet" or "transformer", empty where there is neither
	order    []string
	// components has the denoisers and the text encoders.
	components map[string]*modules
	// layers is the UNet's layers_per_block, 0 where blocks differ or there is no UNet.
	layers int
}

// modules are the layers of one component.
type modules struct {
	tensors map[string]checkpoint.Tensor
	// flat finds a module by its name with underscores for dots, which is how kohya's scripts write names.
	flat map[string]string
}

// place is a layer that an entry changes.
type place struct {
	component, module string
	weight            checkpoint.Tensor
	// swap says that the layer has the two halves of the other spelling's rows in the other order.
	swap bool
}

func (p place) String() string { return p.component + "." + p.module }

func modulesOf(places []place) string {
	var names []string
	for _, p := range places {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// newModel reads the headers of the components that LoRAs change.
func newModel(ck *checkpoint.Checkpoint) (*model, error) {
	m := &model{class: ck.Class(), components: map[string]*modules{}}
	for _, name := range ck.Components() {
		denoiser := name == "unet" || name == "transformer"
		if !denoiser && name != "transformer_2" && !strings.HasPrefix(name, "text_encoder") {
			continue
		}
		comp, err := ck.Component(name)
		if err != nil {
			return nil, err
		}
		tensors, err := comp.Tensors()
		if err != nil {
			return nil, err
		}
		c := &modules{tensors: tensors, flat: map[string]string{}}
		for key, t := range tensors {
			if module, ok := strings.CutSuffix(key, ".weight"); ok && len(t.Shape) > 1 {
				c.flat[strings.ReplaceAll(module, ".", "_")] = module
			}
		}
		m.components[name] = c
		if !denoiser {
			m.order = append(m.order, name)
			continue
		}
		m.denoiser = name
		m.order = slices.Insert(m.order, 0, name)
		if name == "unet" {
			cfg, err := comp.Config()
			if err != nil {
				return nil, err
			}
			layers := cfg.IntOrInts("layers_per_block", []int{2})
			if slices.Min(layers) == slices.Max(layers) {
				m.layers = layers[0]
			}
		}
	}
	if m.denoiser == "" {
		return nil, errors.New("lora: the checkpoint has neither a transformer nor a unet to change")
	}
	return m, nil
}

// The classes whose other spellings than diffusers' are known.
var foreignClasses = []string{"FluxPipeline", "StableDiffusionXLPipeline", "StableDiffusionPipeline"}

// spelling ranks: where a file has a layer in two spellings, the first of these counts, as in diffusers.
const (
	spellDiffusers = iota
	spellMixed     // diffusers' names with underscores for dots
	spellForeign
)

// place finds the layers of every entry. Entries that name none are homeless; those that repeat a layer in a lesser spelling are left without, with
// a note.
func (m *model) place(f *checkpoint.File, entries []*entry, bad *faults) (notes []string) {
	best := map[string]*entry{}
	for _, e := range entries {
		var foreign string
		e.places, e.rank, foreign = m.resolve(e.name)
		if foreign != "" && !slices.Contains(foreignClasses, m.class) {
			if bad.class == "" {
				bad.class = fmt.Sprintf("found keys in the spelling of %s (such as %q), which is read for %s only; %s takes the spelling of diffusers: %s.MODULE.lora_A.weight",
					foreign, e.keys[0], strings.Join(foreignClasses, ", "), m.class, m.denoiser)
			}
			e.places = nil
			continue
		}
		if len(e.places) == 0 {
			bad.homeless = append(bad.homeless, e.keys...)
			continue
		}
		for _, p := range e.places {
			if b := best[p.String()]; b == nil || e.rank < b.rank {
				best[p.String()] = e
			}
		}
	}
	var left []string
	for _, e := range entries {
		for _, p := range e.places {
			b := best[p.String()]
			if b == e {
				continue
			}
			if b.rank == e.rank {
				bad.shapes = append(bad.shapes, fmt.Sprintf("%s: found it as %s and as %s", p, b.name, e.name))
			} else {
				left = append(left, e.name)
			}
			e.places = nil
			break
		}
	}
	if len(left) > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d layers are given in two spellings; the one of diffusers counts, and keys such as %s are left out", f.Path(), len(left), left[0]))
	}
	return notes
}

// textPrefixes are kohya's and ComfyUI's names of text encoders, by pipeline.
func (m *model) textPrefixes() map[string]string {
	names := map[string]string{
		"lora_te_": "text_encoder", "lora_te1_": "text_encoder", "lora_te2_": "text_encoder_2",
		"text_encoders.clip_l.transformer.": "text_encoder",
	}
	if m.class == "FluxPipeline" {
		// sd-scripts numbers FLUX.1's T5 as Stable Diffusion 3's.
		delete(names, "lora_te2_")
		names["lora_te3_"] = "text_encoder_2"
		names["text_encoders.t5xxl.transformer."] = "text_encoder_2"
	}
	return names
}

// resolve finds the layers that a name means, none where there is none. foreign names the spelling where it is not that of diffusers or PEFT.
func (m *model) resolve(name string) (places []place, rank int, foreign string) {
	for prefix, component := range m.textPrefixes() {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return m.flat(component, strings.ReplaceAll(rest, ".", "_")), spellForeign, "kohya"
		}
	}
	if rest, ok := strings.CutPrefix(name, "lora_transformer_"); ok {
		return m.flat("transformer", rest), spellMixed, "kohya"
	}
	if rest, ok := strings.CutPrefix(name, "lora_unet_"); ok {
		if places = m.flat(m.denoiser, rest); places != nil {
			return places, spellMixed, "kohya"
		}
		return m.original(rest), spellForeign, "kohya"
	}
	if strings.HasPrefix(name, "lora_te") || strings.HasPrefix(name, "lora_prior_") {
		return nil, spellForeign, "kohya"
	}
	if rest, ok := strings.CutPrefix(name, "diffusion_model."); ok {
		return m.original(strings.ReplaceAll(rest, ".", "_")), spellForeign, "ComfyUI"
	}
	if rest, ok := strings.CutPrefix(name, "base_model.model."); ok {
		// PEFT saves the adapter of one model and does not say of which.
		for _, c := range m.order {
			if places = m.plain(c, rest); places != nil {
				return places, spellDiffusers, ""
			}
		}
		if places = m.original(strings.ReplaceAll(rest, ".", "_")); places != nil {
			return places, spellForeign, "the original model"
		}
		return nil, spellDiffusers, ""
	}
	if component, rest, ok := strings.Cut(name, "."); ok && m.components[component] != nil {
		return m.plain(component, rest), spellDiffusers, ""
	}
	if places = m.plain(m.denoiser, name); places != nil {
		return places, spellDiffusers, ""
	}
	if places = m.original(strings.ReplaceAll(name, ".", "_")); places != nil {
		return places, spellForeign, "the original model"
	}
	return nil, spellDiffusers, ""
}

// oldAttention are the names of CLIP's projections in files that diffusers wrote before it used PEFT.
var oldAttention = strings.NewReplacer(".self_attn.to_q", ".self_attn.q_proj", ".self_attn.to_k", ".self_attn.k_proj",
	".self_attn.to_v", ".self_attn.v_proj", ".self_attn.to_out", ".self_attn.out_proj")

// plain finds a layer by its name in diffusers or transformers.
func (m *model) plain(component, name string) []place {
	// An attention processor is no level of its own, and to_out is a list of which the first is the layer.
	name = strings.ReplaceAll(name, ".processor", "")
	names := []string{name, name + ".0", "text_model." + name, strings.TrimPrefix(name, "text_model.")}
	if strings.HasPrefix(component, "text_encoder") {
		name = oldAttention.Replace(name)
		names = append(names, name, "text_model."+name, strings.TrimPrefix(name, "text_model."))
	}
	for _, n := range names {
		if p, ok := m.layer(component, n); ok {
			return []place{p}
		}
	}
	return nil
}

// layer returns the layer of that name. A vector, such as the scale of a norm, is none.
func (m *model) layer(component, module string) (place, bool) {
	c := m.components[component]
	if c == nil {
		return place{}, false
	}
	t, ok := c.tensors[module+".weight"]
	if !ok || len(t.Shape) < 2 {
		return place{}, false
	}
	return place{component: component, module: module, weight: t}, true
}

// flat finds a layer by its name in diffusers or transformers with underscores for dots.
func (m *model) flat(component, name string) []place {
	c := m.components[component]
	if c == nil {
		return nil
	}
	for _, n := range []string{name, "text_model_" + name, strings.TrimPrefix(name, "text_model_")} {
		if module, ok := c.flat[n]; ok {
			p, _ := m.layer(component, module)
			return []place{p}
		}
	}
	return nil
}

// original finds layers of the denoiser by a name with underscores for dots: in the code that the model was published with, or in diffusers.
func (m *model) original(name string) []place {
	if places := m.flat(m.denoiser, name); places != nil {
		return places
	}
	var names []string
	swap := false
	switch {
	case m.denoiser == "unet":
		if n := fromLDM(name, m.layers); n != "" {
			return m.flat("unet", n)
		}
	case m.class == "FluxPipeline":
		names, swap = fromBFL(name)
	}
	var places []place
	for _, n := range names {
		p, ok := m.layer(m.denoiser, n)
		if !ok {
			return nil
		}
		p.swap = swap
		places = append(places, p)
	}
	return places
}

var (
	ldmBlock  = regexp.MustCompile(`^(input_blocks|output_blocks)_(\d{1,3})_(\d)_(.+)$`)
	ldmMiddle = regexp.MustCompile(`^middle_block_([012])_(.+)$`)
	ldmResnet = map[string]string{"in_layers_2": "conv1", "emb_layers_1": "time_emb_proj", "out_layers_3": "conv2", "skip_connection": "conv_shortcut"}
	ldmSingle = map[string]string{
		"input_blocks_0_0": "conv_in", "out_2": "conv_out", "time_embed_0": "time_embedding_linear_1", "time_embed_2": "time_embedding_linear_2",
		"label_emb_0_0": "add_embedding_linear_1", "label_emb_0_2": "add_embedding_linear_2",
	}
)

// fromLDM translates a name of the UNet of latent diffusion (openaimodel.py of Stable Diffusion's and SDXL's code), which numbers blocks through,
// to diffusers' with underscores for dots; "" where it is none. layers is layers_per_block
// (lora_conversion_utils.py, _maybe_map_sgm_blocks_to_diffusers and _convert_unet_lora_key).
func fromLDM(name string, layers int) string {
	if n, ok := ldmSingle[name]; ok {
		return n
	}
	if g := ldmMiddle.FindStringSubmatch(name); g != nil {
		switch g[1] {
		case "0":
			return "mid_block_resnets_0_" + ldmResnet[g[2]]
		case "1":
			return "mid_block_attentions_0_" + g[2]
		}
		return "mid_block_resnets_1_" + ldmResnet[g[2]]
	}
	g := ldmBlock.FindStringSubmatch(name)
	if g == nil || layers == 0 {
		return ""
	}
	i, _ := strconv.Atoi(g[2])
	side := "up"
	if g[1] == "input_blocks" {
		side = "down"
		i-- // the first is conv_in
		if i < 0 {
			return ""
		}
	}
	block := fmt.Sprintf("%s_blocks_%d_", side, i/(layers+1))
	layer := i % (layers + 1)
	switch {
	case g[4] == "op":
		return block + "downsamplers_0_conv"
	case g[4] == "conv" && side == "up":
		return block + "upsamplers_0_conv"
	case g[3] == "0":
		return fmt.Sprintf("%sresnets_%d_%s", block, layer, ldmResnet[g[4]])
	case g[3] == "1":
		return fmt.Sprintf("%sattentions_%d_%s", block, layer, g[4])
	}
	return ""
}

var (
	bflBlock  = regexp.MustCompile(`^(double|single)_blocks_(\d{1,4})_(.+)$`)
	bflDouble = map[string][]string{
		"img_attn_qkv": {"attn.to_q", "attn.to_k", "attn.to_v"}, "img_attn_proj": {"attn.to_out.0"},
		"img_mlp_0": {"ff.net.0.proj"}, "img_mlp_2": {"ff.net.2"}, "img_mod_lin": {"norm1.linear"},
		"txt_attn_qkv": {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}, "txt_attn_proj": {"attn.to_add_out"},
		"txt_mlp_0": {"ff_context.net.0.proj"}, "txt_mlp_2": {"ff_context.net.2"}, "txt_mod_lin": {"norm1_context.linear"},
		"processor_qkv_lora1": {"attn.to_q", "attn.to_k", "attn.to_v"}, "processor_proj_lora1": {"attn.to_out.0"},
		"processor_qkv_lora2": {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}, "processor_proj_lora2": {"attn.to_add_out"},
	}
	bflSingle = map[string][]string{
		"linear1": {"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}, "linear2": {"proj_out"}, "modulation_lin": {"norm.linear"},
		"processor_qkv_lora": {"attn.to_q", "attn.to_k", "attn.to_v"}, "processor_proj_lora": {"proj_out"},
	}
	bflOther = map[string]string{
		"img_in": "x_embedder", "txt_in": "context_embedder", "final_layer_linear": "proj_out", "final_layer_adaLN_modulation_1": "norm_out.linear",
		"time_in_in_layer": "time_text_embed.timestep_embedder.linear_1", "time_in_out_layer": "time_text_embed.timestep_embedder.linear_2",
		"vector_in_in_layer": "time_text_embed.text_embedder.linear_1", "vector_in_out_layer": "time_text_embed.text_embedder.linear_2",
		"guidance_in_in_layer": "time_text_embed.guidance_embedder.linear_1", "guidance_in_out_layer": "time_text_embed.guidance_embedder.linear_2",
	}
)

// fromBFL translates a name of the code that FLUX.1 was published with (or of X-Labs' processors for it) to the modules of diffusers that the layer
// became: its rows in their order (lora_conversion_utils.py, _convert_kohya_flux_lora_to_diffusers and _convert_xlabs_flux_lora_to_diffusers).
// The last modulation has shift before scale there and scale before shift in diffusers (swap_scale_shift).
func fromBFL(name string) (modules []string, swap bool) {
	if n, ok := bflOther[name]; ok {
		return []string{n}, n == "norm_out.linear"
	}
	g := bflBlock.FindStringSubmatch(name)
	if g == nil {
		return nil, false
	}
	table, prefix := bflDouble, "transformer_blocks."
	if g[1] == "single" {
		table, prefix = bflSingle, "single_transformer_blocks."
	}
	for _, n := range table[g[3]] {
		modules = append(modules, prefix+g[2]+"."+n)
	}
	return modules, false
}
