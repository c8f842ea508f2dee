/** CoSENT over pairs of unit vectors, on a GPU. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Every pointer is device-side. Pairs come by falling weight: `first` and `past` are the ends of a pair's equals. */
typedef struct cosent_t {
    uint32_t width;
    uint32_t pairs_capacity;
    uint32_t bags_capacity;
    uint32_t const* counts; /* [2]: pairs, bags */
    uint32_t const* left;   /* [pairs] rows of the vectors */
    uint32_t const* right;
    uint32_t const* first;    /* [pairs] pairs of greater weight come before it */
    uint32_t const* past;     /* [pairs] pairs of lower weight come from it on */
    uint32_t const* bags;     /* [bags] rows that some pair names */
    uint32_t const* starts;   /* [bags + 1] */
    uint32_t const* touching; /* [2 * pairs] by bag: the pairs that name it */
    float const* factor;      /* [1] of the loss in the term */
    float weight;             /* of the term in the total */
    float scale;
    float const* vectors; /* [*, width] */
    float* gradient;      /* likewise: added to; null: value only */
    float* scores;        /* [pairs] workspace */
    float* forces;        /* [pairs] workspace */
    double* term;         /* added to */
} cosent_t;

/** Puts the loss and its gradient on a stream of that device; answers null, or what CUDA calls the error. */
char const* cosent_launch(cosent_t const* problem, int device, void* stream);

#ifdef __cplusplus
}
#endif
