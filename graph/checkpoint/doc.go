// Package checkpoint reads a checkpoint folder in the layout of diffusers: model_index.json, one folder a component with its
// config.json, and weights in safetensors files, sharded or not. Opening reads configs and headers only; tensor bytes stay in
// mapped files until a caller asks for them.
//
// Nothing in a checkpoint is trusted: every length, offset and file name is checked before it is used, and each error names the
// file, what was found and what was wanted.
package checkpoint
