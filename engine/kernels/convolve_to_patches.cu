// The last layer: a convolution to few output channels, with the pass before it, on the matrix
// units.
//
// activation(source * factor + summand), padded -> convolution -> activation -> translated patches
// float [N, K, D, H, W]; stride 1, kernel at most 7 x 7 x 8, source channels in whole 32s. Reads
// the source and writes 4 K bytes a voxel; nothing lies in memory between.
//
// The matrix product has 16 voxels of an input row as M, the 8 kernel columns of one output
// channel as N, and 32 channels of one kernel plane and row as its depth. An operand loaded for an
// input row serves the 7 output rows that see it, whose sums are kept in registers and move on by
// one with every row; the 8 columns are summed, each shifted by its tap, when a row is complete.
// A warp owns 48 columns of one output plane. The numbers of a voxel that one lane loads are 8
// neighbouring channels; the weights are stored in the order that this gives.

#include "element.cuh"

struct Strides {
    Index patch, plane, row;
    int voxel;
};

struct ConvolveToPatches {
    const Element* source;
    const float* factor;     // [patches or 1][channels], or null
    const float* summand;
    const Element* weights;  // mma operands: [K][planes][channels / 32][7 rows][2][32 lanes][4]
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    Strides from;
    int channels, table_stride;
    int extents[3];          // of the source, as the convolution sees it
    int target_extents[3];
    int kernel[3];
    int origin[3];
    int border, shuffled;
    int rows;                // of the target, a block
    int outputs;             // K
    float slope;             // of the activation before
    Activation activation;   // behind
};

#if defined(ELEMENT_FP16) || defined(ELEMENT_BF16)

constexpr int PLANES = 4, PARTS = 3, TILES = 3, ROWS = 7, CHUNK = 32;
constexpr int COLUMNS = 128;                      // of the target, a block
constexpr int PITCH = PARTS * TILES * 16 + 4;     // keeps the columns' sums in different banks
constexpr int THREADS = PLANES * PARTS * 32;

__device__ __forceinline__ void multiply_add(
    float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, const uint2& b
) {
#if __CUDA_ARCH__ >= 800
#if defined(ELEMENT_FP16)
#define KINDS "f32.f16.f16.f32"
#else
#define KINDS "f32.bf16.bf16.f32"
#endif
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col." KINDS
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
#endif
}

struct alignas(16) Words {
    unsigned words[4];
};

// The pass before the convolution, on 8 channels of one voxel; table: 8 factors, 8 summands.
__device__ __forceinline__ Words express(const Vector& vector, const float4* table, float slope) {
    Words result;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const float4 factor = table[part], summand = table[2 + part];
        const float factors[4] = {factor.x, factor.y, factor.z, factor.w};
        const float summands[4] = {summand.x, summand.y, summand.z, summand.w};
        struct alignas(8) Four {
            Element values[4];
        } four;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float value = fmaf(to_float(vector.lanes[part * 4 + i]), factors[i], summands[i]);
            // A value that is not finite stays so: of -inf and NaN the maximum is -inf.
            four.values[i] = to_element(fmaxf(value, slope * value));
        }
        const uint2 two = *reinterpret_cast<uint2*>(&four);
        result.words[part * 2] = two.x;
        result.words[part * 2 + 1] = two.y;
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolve_to_patches(ConvolveToPatches p) {
    extern __shared__ char shared[];
    const int chunks = p.channels / CHUNK, operands = p.kernel[0] * chunks * ROWS * 2 * 32;
    uint2* weights = reinterpret_cast<uint2*>(shared);
    float4* tables = reinterpret_cast<float4*>(weights + operands);  // [chunks][4][4]
    float* sums = reinterpret_cast<float*>(tables + chunks * 16);    // [PLANES][8][PITCH]

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int plane = warp / PARTS, part = warp % PARTS;
    const int output = blockIdx.z % p.outputs, patch = blockIdx.z / p.outputs;
    const int blocks_w = (p.target_extents[2] + COLUMNS - 1) / COLUMNS;
    const int first_w = blockIdx.x % blocks_w * COLUMNS;
    const int first_h = blockIdx.x / blocks_w * p.rows;
    const int last_h = min(first_h + p.rows, p.target_extents[1]);
    const int d = blockIdx.y * PLANES + plane;
    const bool active = d < p.target_extents[0];

    const uint2* from = reinterpret_cast<const uint2*>(p.weights) + (Index)output * operands;
    for (int i = threadIdx.x; i < operands; i += THREADS) weights[i] = from[i];
    float* numbers = reinterpret_cast<float*>(tables);
    for (int i = threadIdx.x; i < p.channels; i += THREADS) {
        const int place = patch * p.table_stride + i;
        numbers[i / 8 * 16 + i % 8] = p.factor ? p.factor[place] : 1.0f;
        numbers[i / 8 * 16 + 8 + i % 8] = p.factor ? p.summand[place] : 0.0f;
    }

    // Where this lane's voxels lie within an input row; -1 where they are zero.
    int places[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = first_w + (part * TILES + tile) * 16 + half * 8 + g;
            int w = -1;
            if (column < p.target_extents[2] + p.kernel[2] - 1) {
                w = continued(column + p.origin[2], p.extents[2], p.border);
            }
            places[tile][half] = w;
            if (w < 0) continue;
            places[tile][half] = p.shuffled ? (w >> 1) * p.from.voxel + (w & 1) * p.channels
                                            : w * p.from.voxel;
        }
    }
    const Element* source = p.source + patch * p.from.patch + t * 8;
    float total[ROWS][TILES][4];
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int j = 0; j < 4; ++j) total[i][tile][j] = 0.0f;
    bool finite = true;
    __syncthreads();

    for (int row = first_h; row < last_h + ROWS - 1; ++row) {
        int h = -1;
        if (row < p.target_extents[1] + p.kernel[1] - 1) {
            h = continued(row + p.origin[1], p.extents[1], p.border);
        }
        if (active && h >= 0) {
            const Element* line =
                source + (p.shuffled ? (h >> 1) * p.from.row + (h & 1) * 2 * p.channels
                                     : h * p.from.row);
            Vector next[TILES][2];
            auto read = [&](int index) {
                const int i = index / chunks, chunk = index - i * chunks;
                const int z = continued(d + i + p.origin[0], p.extents[0], p.border);
                const Element* at = line + chunk * CHUNK;
                at += p.shuffled ? (z >> 1) * p.from.plane + (z & 1) * 4 * p.channels
                                 : z * p.from.plane;
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        if (z >= 0 && places[tile][half] >= 0) {
                            next[tile][half] = load(at + places[tile][half]);
                        }
            };
            read(0);
            for (int index = 0; index < p.kernel[0] * chunks; ++index) {
                const int i = index / chunks, chunk = index - i * chunks;
                const bool inside = continued(d + i + p.origin[0], p.extents[0], p.border) >= 0;
                Words a[TILES][2];
                const float4* table = tables + (chunk * 4 + t) * 4;
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        a[tile][half] = express(next[tile][half], table, p.slope);
                        if (!inside || places[tile][half] < 0) a[tile][half] = Words{};
                    }
                if (index + 1 < p.kernel[0] * chunks) read(index + 1);
                const uint2* b = weights + index * ROWS * 2 * 32 + lane;
#pragma unroll
                for (int j = 0; j < ROWS; ++j) {
                    const uint2 b0 = b[j * 64], b1 = b[j * 64 + 32];
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        const unsigned* upper = a[tile][0].words;
                        const unsigned* lower = a[tile][1].words;
                        multiply_add(total[j][tile], upper[0], lower[0], upper[1], lower[1], b0);
                        multiply_add(total[j][tile], upper[2], lower[2], upper[3], lower[3], b1);
                    }
                }
            }
        }
        const int done = row - (ROWS - 1);  // the output row that has seen all its input rows
        if (done >= first_h) {
            float* own = sums + plane * 8 * PITCH + part * TILES * 16 + g;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                float* at = own + 2 * t * PITCH + tile * 16;
                at[0] = total[ROWS - 1][tile][0];
                at[PITCH] = total[ROWS - 1][tile][1];
                at[8] = total[ROWS - 1][tile][2];
                at[PITCH + 8] = total[ROWS - 1][tile][3];
            }
        }
        __syncthreads();
        if (done >= first_h && active) {
            const float bias = p.bias ? p.bias[output] : 0.0f;
            for (int column = threadIdx.x % (PARTS * 32); column < COLUMNS; column += PARTS * 32) {
                if (first_w + column >= p.target_extents[2]) break;
                float value = bias;
#pragma unroll
                for (int j = 0; j < 8; ++j) value += sums[(plane * 8 + j) * PITCH + column + j];
                value = p.activation(value);
                finite = finite && is_finite(value);
                p.translated[((((Index)patch * p.outputs + output) * p.target_extents[0] + d) *
                                  p.target_extents[1] + done) * p.target_extents[2] + first_w +
                             column] = value;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = ROWS - 1; i > 0; --i)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int j = 0; j < 4; ++j) total[i][tile][j] = total[i - 1][tile][j];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int j = 0; j < 4; ++j) total[0][tile][j] = 0.0f;
    }
    if (!finite) *p.overflow = 1;
}

#endif
