output "bucket" {
  description = "For MLflow's artifacts (s3://…/mlflow) and DVC's remote (s3://…/dvc)."
  value       = aws_s3_bucket.this.bucket
}

output "cluster" {
  description = "aws eks update-kubeconfig --name …"
  value       = aws_eks_cluster.this.name
}

output "database_address" {
  description = "For the connection URLs of overlays/aws."
  value       = aws_db_instance.this.address
}

output "database_master_secret" {
  description = "Secret with the master password, in Secrets Manager."
  value       = aws_db_instance.this.master_user_secret[0].secret_arn
}

output "file_system" {
  description = "For the storage class efs."
  value       = aws_efs_file_system.project.id
}

output "roles" {
  description = "For the annotations of the service accounts in overlays/aws."
  value       = { for name, role in aws_iam_role.pods : name => role.arn }
}
