// The last layer: a convolution to few output channels, on the matrix units.
//
// source, padded -> convolution -> activation -> translated patches float [N, K, D, H, W];
// stride 1, kernel at most 7 wide, source channels in whole 32s. Reads the source, most of it from
// the cache, and writes 4 K bytes a voxel; nothing lies in memory between.
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
    const Element* weights;  // mma operands: [K][planes][channels / 32][7 rows][2][32 lanes][4]
    const float* bias;       // [K], or null
    float* translated;
    int* overflow;
    Strides from;
    int channels;
    int extents[3];          // of the source, as the convolution sees it
    int target_extents[3];
    int kernel[3];
    int origin[3];
    int border, shuffled;
    int rows;                // of the target, a block
    int outputs;             // K
    Activation activation;
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolve_to_patches(ConvolveToPatches p) {
    extern __shared__ char shared[];
    const int chunks = p.channels / CHUNK, operands = p.kernel[0] * chunks * ROWS * 2 * 32;
    uint2* weights = reinterpret_cast<uint2*>(shared);
    float* sums = reinterpret_cast<float*>(weights + operands);  // [2][PLANES][8][PITCH]

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
    if (!active) return;  // all warps of its plane, which wait for no others from here on

    // One operand: 48 columns, 32 channels of a kernel plane and an input row.
    const int each = p.kernel[0] * chunks, last_row = last_h + ROWS - 1;
    auto read = [&](int row, int index, Vector (&vectors)[TILES][2]) {
        if (index >= each) {
            index -= each;
            ++row;
        }
        const int i = chunks == 1 ? index : index / chunks, chunk = index - i * chunks;
        int h = -1;
        if (row < min(last_row, p.target_extents[1] + p.kernel[1] - 1)) {
            h = continued(row + p.origin[1], p.extents[1], p.border);
        }
        const int z = continued(d + i + p.origin[0], p.extents[0], p.border);
        const Element* at = source + chunk * CHUNK;
        if (p.shuffled) {
            at += (z >> 1) * p.from.plane + (h >> 1) * p.from.row +
                  ((z & 1) * 4 + (h & 1) * 2) * p.channels;
        } else {
            at += z * p.from.plane + h * p.from.row;
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bool inside = h >= 0 && z >= 0 && places[tile][half] >= 0;
                uint4 words = make_uint4(0, 0, 0, 0);
                if (inside) words = *reinterpret_cast<const uint4*>(at + places[tile][half]);
                vectors[tile][half] = *reinterpret_cast<Vector*>(&words);
            }
    };
    auto multiply = [&](int index, const Vector (&vectors)[TILES][2]) {
        const uint2* b = weights + index * ROWS * 2 * 32 + lane;
#pragma unroll
        for (int j = 0; j < ROWS; ++j) {
            const uint2 b0 = b[j * 64], b1 = b[j * 64 + 32];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const uint4 upper = *reinterpret_cast<const uint4*>(&vectors[tile][0]);
                const uint4 lower = *reinterpret_cast<const uint4*>(&vectors[tile][1]);
                multiply_add(total[j][tile], upper.x, lower.x, upper.y, lower.y, b0);
                multiply_add(total[j][tile], upper.z, lower.z, upper.w, lower.w, b1);
            }
        }
    };

    Vector first[TILES][2], second[TILES][2];
    read(first_h, 0, first);
    read(first_h, 1, second);
    for (int row = first_h; row < last_row; ++row) {
        // Both halves keep one operand under way while the other is multiplied; an odd count
        // leaves them changed over, so the rows take turns.
        int index = 0;
        for (; index + 1 < each; index += 2) {
            multiply(index, first);
            read(row, index + 2, first);
            multiply(index + 1, second);
            read(row, index + 3, second);
        }
        if (index < each) {
            multiply(index, first);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int half = 0; half < 2; ++half) first[tile][half] = second[tile][half];
            read(row + 1, 1, second);
        }
        const int done = row - (ROWS - 1);  // the output row that has seen all its input rows
        if (done >= first_h) {
            float* plane_sums = sums + ((done & 1) * PLANES + plane) * 8 * PITCH;
            float* own = plane_sums + part * TILES * 16 + g;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                float* at = own + 2 * t * PITCH + tile * 16;
                at[0] = total[ROWS - 1][tile][0];
                at[PITCH] = total[ROWS - 1][tile][1];
                at[8] = total[ROWS - 1][tile][2];
                at[PITCH + 8] = total[ROWS - 1][tile][3];
            }
            asm volatile("bar.sync %0, %1;" ::"r"(plane + 1), "r"(PARTS * 32) : "memory");
            const float bias = p.bias ? p.bias[output] : 0.0f;
            for (int column = threadIdx.x % (PARTS * 32); column < COLUMNS; column += PARTS * 32) {
                if (first_w + column >= p.target_extents[2]) break;
                float value = bias;
#pragma unroll
                for (int j = 0; j < 8; ++j) value += plane_sums[j * PITCH + column + j];
                value = p.activation(value);
                finite = finite && is_finite(value);
                p.translated[((((Index)patch * p.outputs + output) * p.target_extents[0] + d) *
                                  p.target_extents[1] + done) * p.target_extents[2] + first_w +
                             column] = value;
            }
        }
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
