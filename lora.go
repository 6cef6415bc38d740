package precast

import (
	"fmt"
	"path/filepath"
	"strings"

	"precast/graph/checkpoint"
	"precast/graph/lora"
)

// loraSpecs reads what Config.LoRAs names.
func loraSpecs(list []string) ([]lora.Spec, error) {
	specs := make([]lora.Spec, len(list))
	for i, text := range list {
		var err error
		if specs[i], err = lora.ParseSpec(text); err != nil {
			return nil, asUser(err)
		}
	}
	return specs, nil
}

// openLoRAs opens what Config.LoRAs names; nil where it is empty.
func openLoRAs(ck *checkpoint.Checkpoint, list []string) (*lora.Set, error) {
	if len(list) == 0 {
		return nil, nil
	}
	specs, err := loraSpecs(list)
	if err != nil {
		return nil, err
	}
	set, err := lora.Open(ck, specs)
	if err != nil {
		return nil, asUser(err)
	}
	return set, nil
}

// note adds to the parameters of pictures what the configuration has: the scheduler's options, and the LoRAs without the folders that the
// files lie in.
func (p *Pipeline) note(params []Params) {
	if strings.Contains(p.cfg.Scheduler, ",") {
		for i := range params {
			params[i].Scheduler = p.cfg.Scheduler
		}
	}
	specs, err := loraSpecs(p.cfg.LoRAs)
	if err != nil || len(specs) == 0 {
		return
	}
	var names []string
	for _, s := range specs {
		names = append(names, fmt.Sprintf("%s:%g", filepath.Base(s.Path), s.Scale))
	}
	for i := range params {
		params[i] = withExtra(params[i], "lora", names)
	}
}
