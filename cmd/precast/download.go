package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"precast"
)

// download shows how far the download of a model is: a bar on a terminal, a line now and then elsewhere, nothing with --quiet.
func (c *cli) download() func(done, total int64) {
	if c.quiet {
		return nil
	}
	if f, ok := c.err.(*os.File); ok && !c.json && term.IsTerminal(int(f.Fd())) {
		var bar *progressbar.ProgressBar
		return func(done, total int64) {
			if bar == nil {
				bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(c.err), progressbar.OptionSetDescription("download"),
					progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
			}
			bar.ChangeMax64(total)
			_ = bar.Set64(done)
		}
	}
	const pause = 5 * time.Second
	var last time.Time
	log := c.logger()
	return func(done, total int64) {
		if time.Since(last) < pause && done < total {
			return
		}
		last = time.Now()
		if c.json {
			log.Info("progress", "downloaded", done, "of", total)
			return
		}
		fmt.Fprintf(c.err, "precast: downloaded %s of %s\n", precast.FormatBytes(done), precast.FormatBytes(total))
	}
}
