package precast

import (
	"precast/graph/checkpoint"
	"precast/graph/lora"
)

// openLoRAs reads what Config.LoRAs names; nil where it is empty.
func openLoRAs(ck *checkpoint.Checkpoint, list []string) (*lora.Set, error) {
	if len(list) == 0 {
		return nil, nil
	}
	specs := make([]lora.Spec, len(list))
	for i, text := range list {
		var err error
		if specs[i], err = lora.ParseSpec(text); err != nil {
			return nil, asUser(err)
		}
	}
	set, err := lora.Open(ck, specs)
	if err != nil {
		return nil, asUser(err)
	}
	return set, nil
}
