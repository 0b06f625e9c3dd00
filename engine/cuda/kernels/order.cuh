// The order of a program's launches. From compute capability 9.0 on each may begin once all blocks of the
// one before it have, so that its own are on the GPU by the time that one has ended.
#pragma once

// What each kernel of a program begins with: lets the next launch begin, and waits until all before this
// one have ended and what they wrote can be read. Where this one did not begin early, it is done at once.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
