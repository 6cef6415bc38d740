package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// How requests are repeated: attempts in all without progress, and the first pause, which doubles.
var (
	attempts   = 5
	firstPause = time.Second
	// idle is how long a server may be silent.
	idle = 30 * time.Second
)

const (
	longestPause      = 8 * time.Second
	longestRetryAfter = time.Minute
)

// client speaks with one endpoint.
type client struct {
	env  Environment
	base *url.URL
	http *http.Client
}

func newClient(env Environment) (*client, error) {
	base, err := url.Parse(env.Endpoint)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("HF_ENDPOINT: found %q, wanted an address such as %s", env.Endpoint, DefaultEndpoint)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // sizes and ranges are those of the files
	t.ResponseHeaderTimeout = idle
	c := &client{env: env, base: base}
	c.http = &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		const most = 10
		if len(via) >= most {
			return fmt.Errorf("%d redirects", len(via))
		}
		if req.Method == http.MethodHead && (!c.isHub(req.URL) || req.Response.Header.Get("X-Linked-Etag") != "") {
			return http.ErrUseLastResponse // what the hub says of the file is here, not where the file is
		}
		c.authorize(req)
		return nil
	}}
	return c, nil
}

// isHub reports whether an address is on the endpoint's own host: the only one that may see the token.
func (c *client) isHub(u *url.URL) bool { return u.Scheme == c.base.Scheme && u.Host == c.base.Host }

// authorize gives a request the token where it goes to the hub, and takes it away where it does not. Go itself would keep it for another port of
// the same host, and for hosts below.
func (c *client) authorize(req *http.Request) {
	req.Header.Del("Authorization")
	if c.env.Token != "" && c.isHub(req.URL) {
		req.Header.Set("Authorization", "Bearer "+c.env.Token)
	}
}

// statusError is an answer of the hub that is not what was asked for.
type statusError struct {
	status int
	// code and message are the hub's X-Error-Code and X-Error-Message.
	code, message string
	retryAfter    time.Duration
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("the server says %d %s", e.status, http.StatusText(e.status))
	if e.message != "" {
		s += " (" + e.message + ")"
	}
	return s
}

// transient reports whether the same request may work a moment later.
func (e *statusError) transient() bool {
	switch e.status {
	case 408, 429, 500, 502, 503, 504:
		return true
	}
	return false
}

// unreachableError is a hub that does not answer, or not in a useful way.
type unreachableError struct {
	endpoint string
	err      error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("the hub at %s can't be reached: %v", e.endpoint, e.err)
}
func (e *unreachableError) Unwrap() error { return e.err }

func isUnreachable(err error) bool {
	var u *unreachableError
	return errors.As(err, &u)
}

// permanentError is a fault that trying again does not mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// retry calls f until it works, its error is one that stays, or the tries are used up. f says whether it got further than before, which counts
// as a new start.
func retry(ctx context.Context, tries int, f func() (progress bool, err error)) error {
	pause := firstPause
	for left := tries; ; {
		progress, err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var status *statusError
		var permanent permanentError
		if errors.As(err, &permanent) || errors.As(err, &status) && !status.transient() {
			return err
		}
		if progress {
			left, pause = tries, firstPause
		}
		if left--; left == 0 {
			return err
		}
		wait := pause
		if status != nil && status.retryAfter > 0 {
			wait = min(status.retryAfter, longestRetryAfter)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		pause = min(2*pause, longestPause)
	}
}

// send sends a request and returns an answer of 2xx, or of 3xx to a HEAD. A server that falls silent while the answer is read ends the request.
func (c *client) send(ctx context.Context, method, address string, header http.Header) (*http.Response, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		cancel()
		return nil, permanentError{err}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "precast")
	req.Header.Set("Accept-Encoding", "identity")
	c.authorize(req)
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which may be signed
		}
		return nil, err
	}
	resp.Body = &watchedBody{body: resp.Body, cancel: cancel, timer: time.AfterFunc(idle, cancel)}
	if resp.StatusCode >= 400 || resp.StatusCode >= 300 && method != http.MethodHead {
		defer resp.Body.Close()
		e := &statusError{status: resp.StatusCode, code: resp.Header.Get("X-Error-Code"), message: resp.Header.Get("X-Error-Message")}
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
			e.retryAfter = time.Duration(n) * time.Second
		}
		return nil, e
	}
	return resp, nil
}

// watchedBody ends the request when nothing was read for a while.
type watchedBody struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if !b.timer.Reset(idle) && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("no data for %v", idle)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel()
	return err
}

// remoteFile is a file as the hub's listing has it.
type remoteFile struct {
	// size is in bytes, -1 where the listing does not tell.
	size int64
	// sha256 is the content's, for a file in large file storage; empty for others.
	sha256 string
}

// resolve asks for the revision's commit and its files (GET /api/models/ORG/NAME/revision/REV?blobs=true, huggingface_hub's model_info with files_metadata).
func (m *model) resolve(ctx context.Context, tries int) error {
	address := m.client.env.Endpoint + "/api/models/" + m.repo + "/revision/" + url.PathEscape(m.Revision) + "?blobs=true"
	var answer struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
			Size *int64 `json:"size"`
			LFS  *struct {
				Size   int64  `json:"size"`
				SHA256 string `json:"sha256"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	err := retry(ctx, tries, func() (bool, error) {
		resp, err := m.client.send(ctx, http.MethodGet, address, nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		const most = 256 << 20
		data, err := io.ReadAll(io.LimitReader(resp.Body, most))
		if err != nil {
			return false, err
		}
		if err := json.Unmarshal(data, &answer); err != nil || !commitID.MatchString(answer.SHA) {
			return false, permanentError{&unreachableError{m.env.Endpoint, errors.New("its answer is not the hub's; check HF_ENDPOINT and the proxy settings")}}
		}
		return false, nil
	})
	if err != nil {
		return m.explain(err, "")
	}
	m.commit, m.files = answer.SHA, map[string]remoteFile{}
	for _, s := range answer.Siblings {
		if !isLocalName(s.Name) {
			return fmt.Errorf("%s: the hub lists a file %q, whose name leads out of the folder; nothing of it is downloaded", m.title(), s.Name)
		}
		f := remoteFile{size: -1}
		if s.Size != nil {
			f.size = *s.Size
		}
		if s.LFS != nil {
			f = remoteFile{size: s.LFS.Size, sha256: s.LFS.SHA256}
		}
		m.files[s.Name] = f
	}
	return nil
}

// explain says what an error of the hub means and what to do. file is what was asked for, empty for the model itself.
func (m *model) explain(err error, file string) error {
	what := m.title()
	if file != "" {
		what += ": " + file
	}
	page := DefaultEndpoint + "/" + m.repo
	var status *statusError
	if !errors.As(err, &status) {
		var network net.Error
		var permanent permanentError
		if errors.As(err, &permanent) || errors.Is(err, context.Canceled) {
			return err
		}
		if errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w; HF_HUB_OFFLINE=1 uses what is in the cache", what, &unreachableError{m.env.Endpoint, err})
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	token := "no token was given: set HF_TOKEN or run `hf auth login`"
	if m.env.Token != "" {
		token = "a token was given (HF_TOKEN or the token file)"
	}
	switch {
	case status.code == "GatedRepo":
		if m.env.Token == "" {
			return fmt.Errorf("%s is gated: %w; accept its terms on %s, then set HF_TOKEN to a token of that account", what, err, page)
		}
		return fmt.Errorf("%s is gated, and the account of the token has no access: %w; accept its terms on %s, or set HF_TOKEN to a token that may read gated models",
			what, err, page)
	case status.code == "RevisionNotFound":
		return fmt.Errorf("%s: there is no revision %q: %w", m.repo, m.Revision, err)
	case status.code == "EntryNotFound":
		return fmt.Errorf("%s: the hub has no such file: %w", what, err)
	case status.status == http.StatusUnauthorized && strings.Contains(strings.ToLower(status.message), "invalid"):
		return fmt.Errorf("%s: the token is refused: %w; set HF_TOKEN to one that is valid", what, err)
	case status.status == http.StatusUnauthorized, status.status == http.StatusNotFound:
		return fmt.Errorf("%s: there is no such model at the hub, or it is private: %w; check the name (there is no folder of that name here, either); %s", what, err, token)
	case status.status == http.StatusForbidden:
		return fmt.Errorf("%s: access is refused: %w; %s", what, err, token)
	case status.status == http.StatusTooManyRequests:
		return fmt.Errorf("%s: too many requests: %w; wait some minutes; %s, with which more are allowed", what, &unreachableError{m.env.Endpoint, err}, token)
	case status.transient():
		return fmt.Errorf("%s: %w; try later, or use what is in the cache with HF_HUB_OFFLINE=1", what, &unreachableError{m.env.Endpoint, err})
	}
	return fmt.Errorf("%s: %w", what, err)
}
