// Trainers, models and executors give back every byte that they took, whether they lived, failed or were refused.
#include <cstdio>

#include <malloc.h>

#include "check.h"
#include "problem.h"

using namespace native_test;

/** Of the sanitizers' runtimes, whose header not every compiler brings along. */
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace {

/** Bytes that the process has allocated and not released: exact, for nothing here runs beside the caller. */
size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return __sanitizer_get_current_allocated_bytes();
#else
    struct mallinfo2 const info = mallinfo2();
    return info.uordblks + info.hblkhd;
#endif
}

/** What is left of a call that is made again and again, after it has been made twice: whatever is made once stays. */
template <typename call_at> void check_nothing_stays(char const* name, call_at&& call) {
    call();
    call();
    size_t const before = allocated_bytes();
    for (int i = 0; i != 5; ++i)
        call();
    size_t const after = allocated_bytes();
    if (!CHECK(after == before))
        std::fprintf(stderr, "  %s: %zu bytes, then %zu\n", name, before, after);
}

/** A run on two devices that steps, saves and serves. */
void live(std::string const& path, int32_t objective) {
    executor_ptr const executor = make_executor(2, 3);
    trainer_ptr const trainer = make_trainer(executor, tiny_options(objective));
    call_t const call = image_text_call(1, objective);
    run_steps(trainer, call, 2);
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    model_ptr const model = make_model(executor, path);
    output_t const output(call.count());
    uform_items_t const items = call.items();
    require(uform_model_embed(model.get(), &items, &output.view, nullptr, nullptr, nullptr), "embed");
}

/** A trainer that can not be made. */
void fail_to_make(uform_trainer_options_t const& options, char const* resume = nullptr) {
    executor_ptr const executor = make_executor(2, 3);
    uform_trainer_options_t with = options;
    with.resume = resume;
    uform_trainer_t* made = nullptr;
    CHECK(uform_trainer_init_ram(executor.get(), &with, &made) != uform_status_success_k);
    CHECK(made == nullptr);
}

/** A step refused for its arguments, and one for its numbers. */
void fail_to_step() {
    trainer_ptr const trainer = make_trainer(make_executor(2, 3), tiny_options(uform_objective_joint_k));
    call_t call = image_text_call();
    call.groups.assign(call.count(), 9);
    uform_step_t const refused = call.step();
    CHECK(uform_trainer_step(trainer.get(), &refused, nullptr) != uform_status_success_k);
    std::vector<float> const infinite(hidden_k, std::numeric_limits<float>::infinity());
    require(uform_trainer_write(trainer.get(), "norm", infinite.data(), infinite.size()), "write");
    call_t const good = image_text_call();
    uform_step_t const step = good.step();
    CHECK(uform_trainer_step(trainer.get(), &step, nullptr) != uform_status_success_k);
}

} // namespace

int main() {
    {
        size_t const before = allocated_bytes();
        std::vector<char> const held(1000);
        CHECK(allocated_bytes() >= before + held.size());
    }
    temporary_folder const folder;
    std::string const path = folder.file("checkpoint.safetensors"), cut = folder.file("cut.safetensors");
    for (int32_t objective : {uform_objective_masked_k, uform_objective_contrastive_k, uform_objective_joint_k})
        check_nothing_stays("a life", [&] { live(path, objective); });
    std::filesystem::copy_file(path, cut);
    std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 8);

    uform_trainer_options_t const options = tiny_options(uform_objective_joint_k);
    uform_trainer_options_t odd = options, deeper = options, vast = options;
    odd.hidden = hidden_k + 1;
    deeper.depth = 3;
    vast.batch.max_rows_per_device = 1 << 30;
    check_nothing_stays("an odd width", [&] { fail_to_make(odd); });
    check_nothing_stays("a cut checkpoint", [&] { fail_to_make(options, cut.c_str()); });
    check_nothing_stays("an absent checkpoint", [&] { fail_to_make(options, folder.file("absent").c_str()); });
    check_nothing_stays("another depth than the checkpoint's", [&] { fail_to_make(deeper, path.c_str()); });
    check_nothing_stays("a plan without room", [&] { fail_to_make(vast); });
    check_nothing_stays("refused steps", fail_to_step);
    return report();
}
