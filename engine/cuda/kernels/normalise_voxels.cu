// Normalisation of each voxel over its channels (layer norm), in one pass:
// after(activation(norm(source * factor + summand)) + residual), padded; the second + may be - or *.
//
// source, residual [patches, D, H, W, C] -> channels of target [patches, D', H', W', C'], of at most
// 1024 channels. Moves the source and the residual once and the target once. The threads of a voxel are
// neighbours in a warp, one for each of its vectors; of more than 32 vectors each has several. They
// keep the voxel in registers, so that the variance is that of deviations from the mean, and a mean
// far from zero costs no digits.
//
// Not measured yet.

#include "rows.cuh"

constexpr int THREADS = 256;       // most of a block
constexpr int HELD = 32 / LANES;   // vectors of a thread at once: of one voxel, or each of another row

// Numbers of a vector's channels: of the table before the normalisation, and learned ones after it.
struct Affine {
    float factor[LANES], summand[LANES], scale[LANES], shift[LANES];

    __device__ __forceinline__ Affine(const Pointwise& p, int channel) {
        channel = min(channel, p.channels - LANES);  // of a thread that is not needed
        const int place = blockIdx.z * p.table_stride + channel % p.table_channels;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            factor[lane] = p.factor ? p.factor[place + lane] : 1.0f;
            summand[lane] = p.factor ? p.summand[place + lane] : 0.0f;
            scale[lane] = p.norm.scale[channel + lane];
            shift[lane] = p.norm.shift[channel + lane];
        }
    }
};

// The sum of a number over the threads of a voxel, in each of them.
__device__ __forceinline__ float summed(float value) {
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, distance);
    }
    return value;
}

// The vectors of one voxel that a thread has. `own` returns the numbers of each one's channels.
template <int COUNT>
struct Voxel {
    float values[COUNT][LANES];

    // channel: the first. apart: channels from one vector to the next. Channels that do not count
    // become their shift, which is 0.
    template <class Own>
    __device__ __forceinline__ void normalise(
        const ChannelNorm& norm, int channel, int apart, const Own& own
    ) {
        const float share = 1.0f / norm.channels;
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const Affine& affine = own(k);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const bool counts = channel + k * apart + lane < norm.channels;
                float& value = values[k][lane];
                value = fmaf(value, affine.factor[lane], affine.summand[lane]);
                sum += counts ? value : 0.0f;
            }
        }
        const float mean = summed(sum) * share;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const bool counts = channel + k * apart + lane < norm.channels;
                float& value = values[k][lane];
                value = counts ? value - mean : 0.0f;
                squares = fmaf(value, value, squares);
            }
        }
        const float variance = summed(squares) * share;
        // The difference is 0, or NaN where the variance is not finite: an overflow is never hidden.
        const float inverse = rsqrtf(variance + norm.epsilon) + (variance - variance);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const Affine& affine = own(k);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float& value = values[k][lane];
                value = fmaf(value * inverse, affine.scale[lane], affine.shift[lane]);
            }
        }
    }
};

// Block (threads of a voxel, columns). All threads of a warp stay until its last voxel is done, as they
// sum together.
template <bool IS_WIDE, Form FORM>
__global__ void __launch_bounds__(THREADS, IS_WIDE || FORM == GENERAL ? 2 : 3)
    normalise_voxels(Pointwise p) {
    constexpr int VECTORS = IS_WIDE ? HELD : 1, ROWS = HELD / VECTORS;
    const int channel = threadIdx.x * LANES, apart = blockDim.x * LANES;
    const int width = p.target_extents[2], end = end_of_rows(p);
    const Start start = start_of(p, blockIdx.z);
    const Affine kept(p, channel);
    for (int index = blockIdx.x * p.rows; index < end; index += ROWS) {
        for (int begin = 0; begin < width; begin += blockDim.y) {
            const int column = begin + threadIdx.y, w = shown_column(p, start, column);
            Vector from[HELD] = {}, beside[HELD];
            bool shows[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const Row row(p, start, min(index + i, end - 1), channel);
                const bool is_there = index + i < end && column < width;
                shows[i] = is_there && (row.d | row.h | w) >= 0;
#pragma unroll
                for (int k = 0; k < VECTORS; ++k) {
                    if (!shows[i] || channel + k * apart >= p.channels) continue;
                    const Channels<FORM> channels(p, blockIdx.z, channel + k * apart);
                    from[i * VECTORS + k] = channels.source_at(row.d, row.h, w);
                    if (channels.has_residual()) {
                        beside[i * VECTORS + k] = channels.residual_at(row.d, row.h, w);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                Voxel<VECTORS> voxel;
#pragma unroll
                for (int k = 0; k < VECTORS; ++k) {
                    values_of(from[i * VECTORS + k], p.source_unit, voxel.values[k]);
                }
                if (IS_WIDE) {
                    voxel.normalise(p.norm, channel, apart, [&](int k) {
                        return Affine(p, channel + k * apart);
                    });
                } else {
                    voxel.normalise(p.norm, channel, apart, [&](int) -> const Affine& { return kept; });
                }
                if (index + i >= end || column >= width) continue;
                const Row row(p, start, index + i, channel);
#pragma unroll
                for (int k = 0; k < VECTORS; ++k) {
                    if (channel + k * apart >= p.channels) continue;
                    float (&values)[LANES] = voxel.values[k];
                    const Channels<FORM> channels(p, blockIdx.z, channel + k * apart);
                    if (shows[i]) {
                        channels.finish(beside[i * VECTORS + k], values);
                    } else {
                        channels.fill(values);
                    }
                    store(row.at(p, column) + k * apart, vector_of(values, p.target_scale));
                }
            }
        }
    }
}
