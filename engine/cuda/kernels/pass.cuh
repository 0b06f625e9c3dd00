// What passes over voxels share: the expression of one vector,
// after(activation(source * factor + summand) + residual), where - or * may stand for the second +.
#pragma once

#include "blocks.cuh"
#include "stored.cuh"

// Of a binomial filter: the taps of one axis, and what it sees past the ends.
struct Filter {
    int taps, border;
    float border_value;
    float row[7];
};

// Of a pooling: the voxels of a window, and those of the first one that lie before the tensor.
struct Window {
    int kernel[3], padding[3];
    int counts_padding;       // in a mean, as zeros
};

// Normalisation of each voxel over its channels, before the activation.
struct ChannelNorm {
    const float* scale;  // [channels as stored]
    const float* shift;
    int channels;        // that count, from the first on; 0 without a normalisation
    float epsilon;
};

// GATE: the first channel of the residual multiplies all of the expression's.
enum Combination { ADD = 0, SUBTRACT = 1, MULTIPLY = 2, GATE = 3 };

struct Pointwise {
    const Element* source;
    const Element* residual;  // or null
    Element* target;
    const float* factor;      // [patches or 1][channels], or null
    const float* summand;
    Strides source_strides, residual_strides, target_strides;
    int channels;
    int table_stride;         // 0 where one table serves all patches
    int table_channels;       // after which it repeats
    int source_extents[3];    // before sampling
    int extents[3];           // after sampling, before padding
    int target_extents[3];
    int origin[3];            // of the target, in the sampled value
    int factors[3];           // of the sampling
    int border;
    int rows, run;            // of a block, and of a thread that samples: see PassTile
    int shuffled, source_origin[3];  // whether the source holds cells, and the view's first voxel
    int target_cell;          // channels of a voxel where the target holds cells, otherwise 0
    float source_unit, residual_unit, target_scale;  // of split fp16; 0 for numbers kept as such
    int combination;          // of the expression and the residual
    Activation activation;
    Activation after;
    float border_value;       // of CONSTANT
    Filter filter;
    Window window;
    ChannelNorm norm;
#ifdef IN_BLOCKS
    Blocks blocks;            // of the sampled value
    Blocks source_blocks;     // of the source and the residual
    Around source_around;
    Index source_copy, residual_copy;  // from the launch's own blocks to copies that are read; or 0
#endif
};

// Extents of the sampled value, which is padded past them: of a patch, or of the volume.
__device__ __forceinline__ const int (&padded_extents(const Pointwise& p))[3] {
#ifdef IN_BLOCKS
    return p.blocks.volume;
#else
    return p.extents;
#endif
}

// Extents of what is sampled.
__device__ __forceinline__ const int (&sampled_extents(const Pointwise& p))[3] {
#ifdef IN_BLOCKS
    return p.source_blocks.volume;
#else
    return p.source_extents;
#endif
}

// How much of the expression a loop knows: one slope for all channels, without a residual or with
// one that is added and a second such slope, as nearly all passes are; any activation without a residual;
// or all of it. So the common loops hold no code for curves, and the one for curves keeps no residual in
// registers.
enum Form { PLAIN, RESIDUAL, CURVED, GENERAL };

__device__ __forceinline__ constexpr bool has_curves(Form form) {
    return form == CURVED || form == GENERAL;
}

// What stays the same for all voxels of a thread.
template <Form FORM>
struct Channels {
    const Pointwise& p;
    const Element* source;
    const Element* residual;
    int first;  // of the channels
    float factor[LANES], summand[LANES];

    __device__ __forceinline__ Channels(const Pointwise& p, int patch, int channel)
        : p(p), first(channel) {
        if (ARE_BLOCKS) patch = 0;  // the block follows from the voxel
        source = p.source + patch * p.source_strides.patch + channel;
        residual = nullptr;
        const int beside = is_gated() ? 0 : channel;
        if (has_residual()) residual = p.residual + patch * p.residual_strides.patch + beside;
    }

    __device__ __forceinline__ bool has_residual() const {
        return FORM == RESIDUAL || (FORM == GENERAL && p.residual);
    }

    __device__ __forceinline__ bool is_gated() const {
        return FORM == GENERAL && p.combination == GATE;
    }

    // The table's numbers from this thread's first channel on; null for none.
    __device__ __forceinline__ void scale_by(const float* factors, const float* summands) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            factor[lane] = factors ? factors[lane] : 1.0f;
            summand[lane] = factors ? summands[lane] : 0.0f;
        }
    }

#ifdef IN_BLOCKS
    // The number of the block with a voxel of the volume, which becomes that of the block. What it
    // does not hold is never used.
    __device__ __forceinline__ Index source_block(int& d, int& h, int& w) const {
        const Around& around = p.source_around;
        if (!around.extents[0]) return p.source_blocks.within(d, h, w);
        const Start start = p.blocks.start(blockIdx.z);
        d = around.within(d, start.at[0], 0);
        h = around.within(h, start.at[1], 1);
        w = around.within(w, start.at[2], 2);
        return blockIdx.z;
    }

    // From the first voxel of the tensor, from which a launch counts blocks, to that of a block.
    __device__ __forceinline__ static Index place(Index block, const Strides& strides, Index copy) {
        return block * strides.patch + ((unsigned long long)block < gridDim.z ? copy : 0);
    }
#endif

    __device__ __forceinline__ Vector source_at(int d, int h, int w) const {
#ifdef IN_BLOCKS
        const Index block = source_block(d, h, w);
        const Element* source = this->source + place(block, p.source_strides, p.source_copy);
#endif
        if (!p.shuffled) {
            return load(source + d * p.source_strides.plane + h * p.source_strides.row +
                        (Index)w * p.source_strides.voxel);
        }
        d += p.source_origin[0], h += p.source_origin[1], w += p.source_origin[2];
        const int cell = ((d & 1) * 2 + (h & 1)) * 2 + (w & 1);
        return load(source + (d >> 1) * p.source_strides.plane + (h >> 1) * p.source_strides.row +
                    (Index)(w >> 1) * p.source_strides.voxel + cell * p.channels);
    }

    __device__ __forceinline__ Vector residual_at(int d, int h, int w) const {
#ifdef IN_BLOCKS
        const Index block = p.source_blocks.within(d, h, w);
        const Element* residual =
            this->residual + place(block, p.residual_strides, p.residual_copy);
#endif
        return load(residual + d * p.residual_strides.plane + h * p.residual_strides.row +
                    (Index)w * p.residual_strides.voxel);
    }

    __device__ __forceinline__ void evaluate(
        const Vector& from, const Vector& beside, float (&values)[LANES]
    ) const {
        values_of(from, p.source_unit, values);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            values[lane] = fmaf(values[lane], factor[lane], summand[lane]);
        }
        finish(beside, values);
    }

    // The activation, and what follows with a residual. With curves, their code stands in a loop once.
    __device__ __forceinline__ void finish(const Vector& beside, float (&values)[LANES]) const {
        float other[LANES];
        if (FORM == GENERAL) {
#pragma unroll 1
            for (int turn = 0; turn < 2; ++turn) {
                (turn ? p.after : p.activation).apply(values, first);
                if (turn || !p.residual) return;
                values_of(beside, p.residual_unit, other);
                combine(values, other);
            }
        } else if (FORM == CURVED) {
            p.activation.apply(values, first);
        } else {
            if (has_residual()) values_of(beside, p.residual_unit, other);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                values[lane] = p.activation.linear(values[lane]);
                if (has_residual()) values[lane] = p.after.linear(values[lane] + other[lane]);
            }
        }
    }

    __device__ __forceinline__ void combine(
        float (&values)[LANES], const float (&other)[LANES]
    ) const {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            // Not other[is_gated() ? 0 : lane]: an index that is not known puts the array into memory.
            const float factor = is_gated() ? other[0] : other[lane];
            const float summand = p.combination == SUBTRACT ? -other[lane] : other[lane];
            values[lane] = p.combination >= MULTIPLY ? values[lane] * factor : values[lane] + summand;
        }
    }

    // What stands where the value is continued by a constant.
    __device__ __forceinline__ void fill(float (&values)[LANES]) const {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) values[lane] = p.border_value;
    }

    // The expression at one voxel of the source view.
    __device__ __forceinline__ void read(int d, int h, int w, float (&values)[LANES]) const {
        Vector beside;
        if (has_residual()) beside = residual_at(d, h, w);
        evaluate(source_at(d, h, w), beside, values);
    }
};
