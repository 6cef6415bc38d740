// Package nn has the layers that the networks are made of, written with gomlx's graph API over a trace.Ctx.
//
// Conventions, PyTorch's but for the layout of images: activations of a sequence are [batch, length, channels] ("[B, L, C]"), images
// [batch, height, width, channels] ("[B, H, W, C]"); a linear weight is [out, in] and a convolution's [out, in, height, width], as a
// checkpoint stores them. A layer takes the name of its module ("to_q", "net.0.proj"), so that its weights get the checkpoint's
// keys; "" means the module that the Ctx is in.
//
// Activations are in the Ctx's dtype. Where that is a half precision, sums over many elements (norms, softmax) and transcendental
// functions are computed in float32 and rounded once at the end, which is what PyTorch's kernels do.
//
// A shape that does not fit is a panic, as in gomlx; trace.Trace turns it into an error that names the scope.
package nn
